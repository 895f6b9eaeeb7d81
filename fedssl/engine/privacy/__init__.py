"""Client-level differential privacy: clip every client's update, sum, add noise, keep a ledger."""
