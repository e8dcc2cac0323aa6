"""What users call and type: Llama, the command line, JSON, the examples."""
