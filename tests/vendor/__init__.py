"""The engine's pin and its patches."""
