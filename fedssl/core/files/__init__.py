"""Files that survive a crash: atomic writes, locks, hashes and one file of byte strings."""
