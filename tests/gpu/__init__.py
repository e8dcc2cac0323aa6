"""Tests that need a CUDA build and a GPU: `make test-gpu`, on a machine that has them."""
