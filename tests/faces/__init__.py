"""The public interfaces: Llama, the command line, JSON, the examples."""
