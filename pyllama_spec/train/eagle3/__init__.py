"""EAGLE-3 heads: shape, objective, initial weights and file."""
