"""Layer servers on loopback: their results, and their loss."""
