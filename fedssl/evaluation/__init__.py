"""Evaluation of a run's models with probes on labelled images."""
