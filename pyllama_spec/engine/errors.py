"""The exceptions, under the name by which programs of version 0.1 import them."""

from pyllama_spec.errors import *  # noqa: F403
