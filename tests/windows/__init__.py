"""Pyllama_spec on Windows: what `make test-windows` runs in Wine beside the project's own tests."""
