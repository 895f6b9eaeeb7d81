"""The live page: a run directory that is watched in a browser while it is trained."""
