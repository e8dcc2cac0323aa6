"""Builds the site of docs/: hooks of mkdocs, and pages that are written by programs."""
