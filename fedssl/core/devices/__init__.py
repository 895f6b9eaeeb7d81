"""Devices: free memory, numeric precision and threads."""
