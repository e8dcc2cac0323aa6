"""The kinds of drafts that can be trained: each its graph, its first weights, its loss.

A kind is the module of its name here, with the class KIND, and its configuration in config.py.
"""
