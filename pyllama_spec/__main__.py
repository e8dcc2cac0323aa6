"""Runs the command line as python -m pyllama_spec, where pyllama-spec is not on the path."""

import sys

from pyllama_spec.cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
