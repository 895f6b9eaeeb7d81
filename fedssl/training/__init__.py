"""Local training: one client's images, its model and its training steps."""
