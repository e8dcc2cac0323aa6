"""Built models kept on disk, so that a test run builds each of them once."""

from __future__ import annotations

import getpass
import hashlib
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from .build import build
from .eagle3 import build_eagle3
from .eagle3_perm import build_perm_eagle3
from .toys import build_constant, build_perm

CACHE_VARIABLE = "PYLLAMA_SPEC_TEST_CACHE"


@cache
def _source_digest() -> bytes:
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.digest()


def cache_directory() -> Path:
    """The directory from `PYLLAMA_SPEC_TEST_CACHE`, or one per user among temporary files."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        directory = Path(chosen)
    else:
        directory = Path(tempfile.gettempdir()) / f"pyllama-spec-models-{getpass.getuser()}"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory


def _describe(value: object) -> str:
    # repr() of an array is shortened and rounded
    return value.tobytes().hex() if isinstance(value, np.ndarray) else repr(value)


def model_path(kind: str, **options: Any) -> Path:
    """Path of a model, built now if the cache lacks it.

    `kind` is an architecture, `perm`, `constant`, `eagle3` or `perm_eagle3`; `options` are the
    keyword arguments of `build`, `build_perm`, `build_constant`, `build_eagle3` or
    `build_perm_eagle3`. The file's name depends on them and on the builders' source. Files are
    shared between tests: never write to one.
    """
    digest = hashlib.sha256(_source_digest())
    digest.update(kind.encode())
    for name in sorted(options):
        digest.update(f"\0{name}={_describe(options[name])}".encode())
    path = cache_directory() / f"{kind}-{digest.hexdigest()[:20]}.gguf"
    if path.exists():
        return path
    if kind == "perm":
        return build_perm(path, **options)
    if kind == "constant":
        return build_constant(path, **options)
    if kind == "eagle3":
        return build_eagle3(path, **options)
    if kind == "perm_eagle3":
        return build_perm_eagle3(path, **options)
    return build(kind, path, **options)
