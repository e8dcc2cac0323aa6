"""A run of training, from text to a GGUF: steps, checkpoints, curves, provenance."""
