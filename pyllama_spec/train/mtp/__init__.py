"""MTP heads: their facts, graph, chains and file."""
