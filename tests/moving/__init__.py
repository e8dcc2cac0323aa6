"""Programs and tests written for llama-cpp-python."""
