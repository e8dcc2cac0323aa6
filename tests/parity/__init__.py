"""Independent references for the engine's numbers."""
