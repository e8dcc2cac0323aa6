"""Programs and tests that were written for llama-cpp-python."""
