"""MTP heads: their facts in a file, the graph, the chains, and the written file."""
