"""Runtimes: how messages reach clients and replies come back."""
