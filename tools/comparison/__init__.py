"""Compares llama-cpp-python and pyllama_spec, each in its own process."""
