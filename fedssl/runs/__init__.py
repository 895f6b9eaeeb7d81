"""Runs: a directory in which an experiment is trained, resumed, measured and exported."""
