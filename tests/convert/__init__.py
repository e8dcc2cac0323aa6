"""Conversion of published checkpoints."""
