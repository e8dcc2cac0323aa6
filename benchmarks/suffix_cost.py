"""The cost of a store by its size: opening, lookups, writing a text, and memory.

    python benchmarks/suffix_cost.py [--megabytes 0.001 1 100 1000]

Sizes are those of the index in memory, which --max-size bounds. Times are this process's CPU time,
which other programs disturb less than wall time.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from pyllama_spec.drafters import Committed, DraftRequest, Suffix
from pyllama_spec.drafters.suffix.store import Store
from pyllama_spec.drafters.suffix.token_index import index_bytes

_PART = 1 << 13
_VOCABULARY = 30_000


def filled(path: Path, n_bytes: float, rng: np.random.Generator) -> Store:
    """Creates a store of about n_bytes, of texts that share phrases."""
    phrases = rng.integers(0, _VOCABULARY, (2000, 12)).astype(np.int32)
    store = Store(path, bytes(32), max_bytes=2 << 30)
    n_tokens = max(int(n_bytes / (index_bytes(1 << 20) / (1 << 20))), 32)
    while store.index.n < n_tokens:
        n = min(n_tokens - store.index.n, _PART)
        text = phrases[rng.integers(0, len(phrases), n // 12 + 1)].ravel()[:n]
        store.write_all([text.tolist()])
    return store


def measure(path: Path, n_bytes: float) -> None:
    """Measures a store; prints a line."""
    rng = np.random.default_rng(1)
    filled(path, n_bytes, rng).close()
    own = _memory()
    begin = time.process_time()
    store = Store(path, None)
    opened = time.process_time() - begin
    drafter = Suffix(store=store)
    drafter.begin_request(0, remember=False)
    text = [int(store.index.tokens[i % 8]) for i in range(8)]
    drafter.commit_one(Committed(0, text, 0))
    begin, n_rounds, n_tokens, n_drafted = time.process_time(), 3000, 0, 0
    for _ in range(n_rounds):
        # A text of phrases that the store knows, each with several continuations.
        draft = drafter.propose_one(DraftRequest(0, text, 15))
        n_drafted += len(draft.ids)
        at = int(rng.integers(0, max(store.index.n - 8, 1)))
        new = [max(t, 0) for t in (*draft.ids[:3], *store.index.tokens[at : at + 3].tolist())]
        drafter.commit_one(Committed(0, new, len(text)))
        text += new
        n_tokens += len(new)
    spent = time.process_time() - begin
    now = _memory()
    begin = time.process_time()
    for _ in range(20):
        store.add(rng.integers(0, _VOCABULARY, 500).tolist())
    added = (time.process_time() - begin) / 20
    size = path.stat().st_size
    print(
        f"{size / 1e6:9.3f} MB  {store.index.n:9} tokens  open {1e3 * opened:6.2f} ms  "
        f"round {1e6 * spent / n_rounds:5.0f} us  committed token {1e6 * spent / n_tokens:4.0f} us"
        f"  drafted {n_drafted / n_rounds:.1f}  a text of 500 tokens {1e3 * added:5.2f} ms  "
        f"memory {max(now - own, 0):.1f} MB",
        flush=True,
    )


def _memory() -> float:
    """MB of the process's own memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(facts["RssAnon"].split()[0]) / 1e3


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--megabytes", type=float, nargs="+", default=[0.001, 1, 100])
    for megabytes in parser.parse_args().megabytes:
        with tempfile.TemporaryDirectory() as folder:
            measure(Path(folder, "store.memory"), 1e6 * megabytes)


if __name__ == "__main__":
    main()
