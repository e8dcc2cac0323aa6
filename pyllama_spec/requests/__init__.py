"""Requests: options to text, one at a time or many side by side."""
