"""What to run and what the results mean. Pure: no process, no clock, no network, no torch."""
