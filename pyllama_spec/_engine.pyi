"""The compiled module, as mypy sees it: cffi builds its types at run time."""

from typing import Any

ffi: Any
lib: Any
