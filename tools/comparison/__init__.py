"""llama-cpp-python and pyllama_spec side by side, each in an environment of its own."""
