"""The engine: the round loop, the checks on uploads, the checkpoints and the runtimes."""
