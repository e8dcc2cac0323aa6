"""Servers of layers, on loopback: what they compute, and what becomes of it when they go."""
