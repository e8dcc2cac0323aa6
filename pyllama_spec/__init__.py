"""Speculative decoding for local language models: the same text, faster."""
