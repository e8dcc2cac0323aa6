"""Tests of the kernels of csrc/kernels/."""
