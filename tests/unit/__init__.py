"""Each room on its own."""
