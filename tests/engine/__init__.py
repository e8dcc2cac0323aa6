"""The engine: contexts, batches, memory, sampling, vocabularies."""
