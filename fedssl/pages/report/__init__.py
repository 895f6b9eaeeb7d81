"""A report: one HTML file about a run or about several compared runs, which needs no network."""
