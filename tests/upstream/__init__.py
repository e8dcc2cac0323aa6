"""The engine's own tests, against the engine as built here."""
