"""Some hundred acts of the soak; its hour is a command, see docs/security.md."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

ACTS = 600


def soak(*words: str, acts: int = ACTS) -> tuple[int, Any, str]:
    """Exit code, figures and errors of a run."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-m", "tests.robust.soak",
         "--acts", str(acts), *words],
        capture_output=True, text=True, check=False, timeout=1200,
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


def is_flat(figures: Any) -> bool:
    """Memory and descriptors; buffers still find their sizes in so short a run."""
    fewest, most = figures["descriptors"]
    return bool(figures["rss_per_act"] < 300_000 and most - fewest <= 2)


def test_everything_at_once_for_a_while() -> None:
    code, figures, errors = soak("--every", "4")
    assert (code, errors) == (0, "")
    assert figures["compared"] >= 20
    assert len(figures["acts"]) == 10
    assert is_flat(figures), figures
