"""Drafters by themselves."""
