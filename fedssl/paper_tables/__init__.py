"""Published tables and sweeps: plan the trainings, run them, and compare the figures."""
