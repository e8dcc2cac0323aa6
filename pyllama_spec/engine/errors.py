"""The exceptions under the module name of version 0.1."""

from pyllama_spec.errors import *  # noqa: F403
