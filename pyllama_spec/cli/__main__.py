"""python -m pyllama_spec.cli."""

import sys

from pyllama_spec.cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
