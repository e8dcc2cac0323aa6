"""The command line: pyllama-spec generate | chat | convert | train | quantize | bench | doctor."""

from pyllama_spec.cli.entry import main

__all__ = ["main"]
