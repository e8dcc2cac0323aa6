"""The facts of a measurement: versions, machine, files and load."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import os
import platform
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from pyllama_spec._version import __version__
from pyllama_spec.engine import devices, engine_version, row_kernels, system_info

_MIB = 2**20
# A file up to this size is hashed whole, a larger one at both ends: a benchmark should not first
# read 40 GB.
_WHOLE_FILE_BYTES = 512 * _MIB


def versions() -> dict[str, str]:
    """The versions of everything that a figure may depend on."""
    return {
        "pyllama_spec": __version__,
        "engine": engine_version(),
        "python": sys.version.split()[0],
        "numpy": np.__version__,
    }


def describe_machine() -> dict[str, Any]:
    """The processor, memory, devices and system."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    return {
        "cpu_model": _cpu_model(),
        "n_cpus": os.cpu_count(),
        "n_cpus_usable": len(usable) if usable is not None else os.cpu_count(),
        "platform": platform.platform(),
        "system_info": system_info().strip(),
        "row_kernels": row_kernels(),
        "devices": [asdict(device) for device in devices()],
    }


def _cpu_model() -> str:
    # Linux knows an ARM processor by numbers, and lscpu the names.
    for command in (("lscpu",), ("sysctl", "machdep.cpu.brand_string")):
        with contextlib.suppress(OSError):
            env = {**os.environ, "LC_ALL": "C"}
            said = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
            if match := re.search(r"(?m)^(?:\s*Model name|machdep\S+):\s*(.+)", said.stdout):
                return match[1].strip()
    return platform.processor() or platform.machine()


def describe_file(path: Path) -> dict[str, Any]:
    """The name, size and hash of a model's file."""
    size = path.stat().st_size
    digest = hashlib.sha256()
    with path.open("rb") as file:
        if size <= _WHOLE_FILE_BYTES:
            while data := file.read(_MIB):
                digest.update(data)
            what = "the whole file"
        else:
            digest.update(file.read(_MIB))
            file.seek(-_MIB, os.SEEK_END)
            digest.update(file.read(_MIB))
            what = "the first and the last MiB"
    return {"name": path.name, "size_bytes": size, "sha256": digest.hexdigest(), "sha256_of": what}


def load_average() -> list[float] | None:
    """The load averages of 1, 5 and 15 minutes; None where the system has none."""
    try:
        return [round(x, 2) for x in os.getloadavg()]
    except (OSError, AttributeError):
        return None


def now() -> str:
    """The time in UTC, ISO 8601."""
    return dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")
