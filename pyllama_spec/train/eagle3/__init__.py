"""EAGLE-3 heads: their shape, their objective, their first weights and their file."""
