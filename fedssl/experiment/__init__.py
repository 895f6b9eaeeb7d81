"""Experiments: settings, overrides, and the recipes that come with the package."""
