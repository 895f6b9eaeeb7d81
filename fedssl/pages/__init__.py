"""HTML pages about runs: a report as one file, and a live page."""
