"""python -m pyllama_spec: the command line, where the command pyllama-spec is not on the path."""

import sys

from pyllama_spec.cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
