"""Unit tests of single modules."""
