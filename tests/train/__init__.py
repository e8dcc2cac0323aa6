"""Tests of training: they need PyTorch, which the default test group lacks."""
