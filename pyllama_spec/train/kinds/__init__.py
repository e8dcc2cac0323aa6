"""The kinds of drafts that can be trained: each its graph, its first weights, its loss."""
