"""Benchmarks: run by hand, never asserted in a test."""
