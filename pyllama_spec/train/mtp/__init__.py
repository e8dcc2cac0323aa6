"""MTP heads: what a file has of one, its graph, its chains and the file that it is written to."""
