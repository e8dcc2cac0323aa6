"""The version of the installed package. Reading it is slow: import this module late."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("pyllama_spec")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+unknown"
