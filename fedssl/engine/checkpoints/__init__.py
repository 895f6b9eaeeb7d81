"""Checkpoints of a run, and the state that clients keep between rounds."""
