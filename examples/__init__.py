"""Short programs, each run by a test."""
