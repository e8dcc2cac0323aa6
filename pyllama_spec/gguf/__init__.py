"""GGUF files without the engine: headers, keys, tables and numbers of tensors, and a writer."""
