"""Downloads files of the Hugging Face hub, by the package huggingface_hub."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from pyllama_spec.errors import ArgumentError, UnsupportedError

# So many names of files a message shows.
_MAX_SHOWN = 20


def fetch(
    repo_id: str,
    filename: str | None,
    additional_files: Sequence[str],
    local_dir: str | os.PathLike[str] | None,
    cache_dir: str | os.PathLike[str] | None,
) -> Path:
    """Downloads a model's file and further ones."""
    try:
        import huggingface_hub as hub
    except ImportError:
        raise UnsupportedError(
            "from_pretrained needs the package huggingface_hub: pip install pyllama_spec[hub]"
        ) from None
    if not isinstance(filename, str):
        raise ArgumentError(
            f"filename={filename!r} is not the name or pattern of a file in {repo_id}"
        )
    names = _names(hub, repo_id)
    wanted = [_one_of(names, pattern, repo_id) for pattern in (filename, *additional_files)]
    paths = [
        hub.hf_hub_download(
            repo_id=repo_id, filename=name, local_dir=local_dir, cache_dir=cache_dir
        )
        for name in wanted
    ]
    return Path(paths[0])


def _names(hub: Any, repo_id: str) -> list[str]:
    """The file names of a repository, relative to it."""
    entries = hub.HfFileSystem().ls(repo_id, recursive=True)
    names = [entry["name"] if isinstance(entry, dict) else str(entry) for entry in entries]
    return [str(PurePosixPath(name).relative_to(repo_id)) for name in names]


def _one_of(names: Sequence[str], pattern: str, repo_id: str) -> str:
    fitting = [name for name in names if fnmatch.fnmatch(name, pattern)]
    if len(fitting) == 1:
        return fitting[0]
    shown = fitting or list(names)
    more = f" and {len(shown) - _MAX_SHOWN} more" if len(shown) > _MAX_SHOWN else ""
    which = "several files fit" if fitting else "there is no file"
    raise ArgumentError(
        f"{repo_id}: {which} {pattern!r}; there are {', '.join(shown[:_MAX_SHOWN])}{more}"
    )
