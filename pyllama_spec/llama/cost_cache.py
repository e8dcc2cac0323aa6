"""Stores the costs of rounds on this machine for later programs: initial estimates.

One small file for each target, drafter, machine and build, in the folder where downloads are kept
too. A file that is damaged, hostile or of another version is ignored, and no fault
here reaches the caller. PYLLAMA_SPEC_COSTS=off disables it.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
from pathlib import Path
from typing import Any

from pyllama_spec.drafters import Drafter
from pyllama_spec.engine import Context, build_stamp, devices, engine_version, row_kernels
from pyllama_spec.files import whole_file
from pyllama_spec.speculative import Controller
from pyllama_spec.speculative.controller import KnownCosts

_FORMAT = 1
# A file has some hundred bytes.
_MAX_BYTES = 1 << 14
_MAX_SIZES = 64
# Seconds of a part of a round: beyond these something else was measured.
_LEAST_S, _MOST_S = 1e-8, 60.0


def cache_folder() -> Path:
    """The folder of downloads and costs."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("PYLLAMA_SPEC_CACHE") or f"{base}/pyllama_spec").expanduser()


class CostCache:
    """The cost file of a context and its drafter."""

    def __init__(self, context: Context, drafter: Drafter) -> None:
        self._path: Path | None = None
        if os.environ.get("PYLLAMA_SPEC_COSTS", "").lower() not in ("off", "0", "no"):
            # A folder that cannot be named, a drafter whose description fails.
            with contextlib.suppress(Exception):
                self._path = cache_folder() / "costs" / f"{_key(context, drafter)}.json"

    @property
    def path(self) -> Path | None:
        """The path of the file; None if costs are not stored."""
        return self._path

    def read(self) -> KnownCosts | None:
        """Reads the stored costs; None if they are missing or implausible."""
        # Opening a pipe, which is not a regular file, may block without end.
        if self._path is None or not self._path.is_file():
            return None
        try:
            with self._path.open("rb") as file:
                data = file.read(_MAX_BYTES + 1)
            content = json.loads(data) if len(data) <= _MAX_BYTES else {}
            if content["format"] != _FORMAT:
                return None
            known = KnownCosts(*(_curve(content[name]) for name in ("verify", "draft", "rest")))
        except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
            return None
        return known if known.verify else None

    def write(self, controller: Controller) -> None:
        """Stores a controller's costs, if it measured enough."""
        if self._path is None:
            return
        known = controller.known_costs()
        if known is None:
            return
        content = {
            "format": _FORMAT,
            "verify": known.verify,
            "draft": known.draft,
            "rest": known.rest,
        }
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # A file of this process alone: others may write theirs, and the last one counts.
            own = self._path.with_name(f"{self._path.name}.{os.getpid()}")
            with whole_file(own) as part:
                part.write_text(json.dumps(content), encoding="ascii")
            own.replace(self._path)


def _key(context: Context, drafter: Drafter) -> str:
    """A digest of everything that the costs depend on."""
    info, params = context.model.info, context.params
    about = drafter.describe()
    facts = [
        build_stamp(), engine_version(), row_kernels(), platform.machine(), platform.node(),
        os.cpu_count(), [device.name for device in devices()], _cpu_name(),
        info.arch, info.n_params, info.size_bytes, info.n_layer, info.n_embd, info.n_vocab,
        context.model.description, sorted(context.model.placement.items()),
        context.n_threads, params.n_seq_max, params.kv_unified, params.flash_attn,
        params.type_k, params.type_v, params.n_rs_seq, context.target_layers,
        drafter.name, drafter.max_draft, about.get("size_bytes"), about.get("n_params"),
        about.get("lookup"),
    ]  # fmt: skip
    import hashlib  # loads a library of its own

    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def _cpu_name() -> str:
    """The processor's name, if the system reports it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n"):
            if line.startswith("model name"):
                return line
    return platform.processor()


def _curve(seconds: Any) -> dict[int, float]:
    """Reads seconds by size; ValueError, or another one, if a value is implausible."""
    if len(seconds) > _MAX_SIZES:
        raise ValueError
    curve: dict[int, float] = {}
    for key, value in seconds.items():
        size = int(key[:4]) if key.isascii() else 0
        # Not converted before: JSON has whole numbers that no float holds. NaN is outside too.
        if not 1 <= size < 1000 or value is True or not _LEAST_S <= value <= _MOST_S:
            raise ValueError
        curve[size] = float(value)
    return curve
