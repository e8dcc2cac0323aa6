"""Comparison with stock llama.cpp, run by hand."""
