"""Tiny runs for the tests of reports."""

from tiny_runs import go, images, labelled

__all__ = ["go", "images", "labelled"]
