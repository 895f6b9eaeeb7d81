"""Plots, drawn with matplotlib, and contact sheets."""
