"""Independent references that the engine's numbers are compared with."""
