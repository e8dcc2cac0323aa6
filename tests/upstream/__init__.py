"""The engine's own tests, against the engine as it is built here."""
