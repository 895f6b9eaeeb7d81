"""Uploads on their way to a merge: validation, bounds, weights and routing."""
