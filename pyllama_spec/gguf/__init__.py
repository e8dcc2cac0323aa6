"""GGUF files without the engine: headers, keys, tensor tables and data, and a writer."""
