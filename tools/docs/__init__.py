"""Builds the site of docs/: mkdocs hooks, and generators of pages and pictures."""
