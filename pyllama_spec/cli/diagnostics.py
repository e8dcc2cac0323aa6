"""Facts of this build and machine, and the cost of a verify batch there."""

from __future__ import annotations

import json
import math
import platform
import statistics
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from pyllama_spec._version import __version__
from pyllama_spec.drafters import Committed, Drafter, DraftRequest
from pyllama_spec.engine import (
    Batch,
    Context,
    Model,
    devices,
    engine_version,
    exact_rows,
    row_kernels,
    supports_gpu,
    system_info,
)
from pyllama_spec.engine.model import in_words
from pyllama_spec.engine.system import backends
from pyllama_spec.errors import ArgumentError, CancelledError, EngineError, ModelLoadError
from pyllama_spec.gguf.reader import read_key
from pyllama_spec.speculative.isolated_drafter import IsolatedDrafter
from pyllama_spec.speculative.row_timing import in_order

MAX_ROWS = 16
# With the time for opening, less than a minute.
VERIFY_S, DRAFT_S = 40.0, 10.0
_N_PREFIX = 128
# What drafters are measured after, again and again: lookups find it.
_TEXT = '{"id": 7, "name": "a"}\n'


@dataclass(frozen=True, slots=True)
class VerifyCost:
    """The cost of one decode of n_rows tokens: one pending and n_rows - 1 drafted.

    A round of this width pays when it commits more tokens than `ratio`, the median over one row in
    the same pass, the draft's own cost aside. `own_share`: how much of its threads' time this
    process had, 1.0 on a machine that has nothing else to do.
    """

    n_rows: int
    ms: float
    ratio: float
    lowest: float
    highest: float
    own_share: float
    n_passes: int


def report() -> dict[str, Any]:
    """Versions, devices and the machine, for a bug report or a benchmark's provenance."""
    return {
        "pyllama_spec": __version__,
        "engine": engine_version(),
        "system_info": system_info().strip(),
        "row_kernels": row_kernels(),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "supports_gpu": supports_gpu(),
        "backends": backends(),
        "devices": [asdict(device) for device in devices()],
    }


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:.1f} MiB" if n_bytes >= 2**20 else f"{n_bytes / 2**10:.0f} KiB"


def describe_model(model: Model) -> dict[str, Any]:
    """The facts about a model that speculation depends on."""
    info = model.info
    if not info.has_recurrent_state:
        rollback = "any number of tokens"
    elif info.can_roll_back and not info.state_bytes:
        rollback = "by snapshots, in caches of its own"
    elif info.can_roll_back:
        rollback = f"by snapshots: {_size(info.snapshot_token_bytes)} a sequence and token"
        if info.snapshot_base_bytes:
            rollback += f", and {_size(info.snapshot_base_bytes)} a sequence"
        rollback += f", beside its state of {_size(info.state_bytes)}"
    else:
        rollback = (
            f"by a copy of its state ({_size(info.state_bytes)} a sequence) before each draft, and "
            "a second decode of what was accepted"
        )
    return {
        "path": str(model.path),
        "architecture": info.arch,
        "description": model.description,
        "n_params": info.n_params,
        "size_bytes": info.size_bytes,
        "n_layer": info.n_layer,
        "n_embd": info.n_embd,
        "n_vocab": info.n_vocab,
        "n_ctx_train": info.n_ctx_train,
        "placement": model.placement,
        "layers": f"on {in_words(model.placement)}",
        "rollback": rollback,
        "repacked_bytes": info.repacked_bytes,
        "exact_rows": exact_rows(model),
        "state_bytes": info.state_bytes,
        "snapshot_base_bytes": info.snapshot_base_bytes,
        "snapshot_token_bytes": info.snapshot_token_bytes,
    }


def measure_verify_cost(
    model: Model,
    *,
    max_rows: int = MAX_ROWS,
    repeats: int = 5,
    n_threads: int | None = None,
    budget_s: float | None = None,
    progress: Callable[[float], None] | None = None,
) -> list[VerifyCost]:
    """Times decodes of 1 .. max_rows rows after a short prefix, interleaved, for budget_s at most.

    A wider batch takes no less than a narrower one: where it seems to, another program disturbed
    the narrower one, and the time of the wider counts for both. The first of all passes is not
    counted. The result has what was measured until the time was over.
    """
    budget_s = VERIFY_S if budget_s is None else budget_s
    n_ctx = _N_PREFIX + 4 * max_rows * max_rows + max_rows
    passes: list[dict[int, float]] = []
    with Context(model, n_ctx=n_ctx, n_threads=n_threads) as context:
        batch = Batch(max(context.n_batch, max_rows))
        token = model.vocab.bos or 0
        begun, own = perf_counter(), process_time()
        with _ended_after(context, budget_s):
            for i in range(repeats + 1):
                context.memory.clear()
                batch.clear()
                batch.extend([token] * _N_PREFIX, 0, output_last=True)
                context.decode(batch)
                seconds: dict[int, float] = {}
                passes.append(seconds)
                for n_rows, one in _one_pass(context, batch, token, max_rows):
                    if perf_counter() - begun > budget_s:  # the timer's thread may be late
                        raise CancelledError("out of time")
                    seconds[n_rows] = one
                    if progress is not None:
                        done = (i + len(seconds) / max_rows) / (repeats + 1)
                        progress(max(done, (perf_counter() - begun) / budget_s))
        wall_s, own_s = perf_counter() - begun, process_time() - own
        share = own_s / (wall_s * context.n_threads)
    if progress is not None:
        progress(1.0)
    costs = _costs(passes, max_rows, share)
    if not costs:
        raise EngineError(
            f"no decode of {model.path.name} ended within {budget_s:.0f} s: other programs have "
            "the processor, or the model does not fit the memory; end them, or take fewer threads"
        )
    return costs


def _costs(passes: list[dict[int, float]], max_rows: int, share: float) -> list[VerifyCost]:
    """The medians of all passes but the first; of all passes if no later one is complete."""
    is_any_whole = any(len(one) == max_rows for one in passes[1:])
    counted = [_as_widths_grow(one) for one in passes[is_any_whole:] if one]
    by_rows = {n: [one for one in counted if n in one] for one in counted for n in one}
    # Not each width was in as many passes.
    seconds = _as_widths_grow(
        {n: statistics.median(one[n] for one in those) for n, those in by_rows.items()}
    )
    ratio = _as_widths_grow(
        {n: statistics.median(one[n] / one[1] for one in those) for n, those in by_rows.items()}
    )
    out = []
    for n in sorted(by_rows):
        ratios = [ratio[n], *(one[n] / one[1] for one in by_rows[n])]
        n_passes = len(by_rows[n])
        out.append(
            VerifyCost(n, 1e3 * seconds[n], ratio[n], min(ratios), max(ratios), share, n_passes)
        )
    return out


def _as_widths_grow(seconds: dict[int, float]) -> dict[int, float]:
    """The costs by rows, made monotonic: none above that of a wider batch."""
    out, least = {}, math.inf
    for n in sorted(seconds, reverse=True):
        out[n] = least = min(least, seconds[n])
    return out


@contextmanager
def _ended_after(context: Context, seconds: float) -> Iterator[None]:
    """Ends the block at a deadline, and cancels a decode that runs then."""
    timer = threading.Timer(seconds, context.cancel)
    timer.daemon = True
    timer.start()
    try:
        yield
    except CancelledError:
        pass
    finally:
        timer.cancel()
        timer.join()
        context.cancel(False)


def describe_draft(
    drafter: Drafter, target: Model, *, repeats: int = 5, n_threads: int | None = None
) -> dict[str, Any]:
    """The facts about a draft, and the milliseconds of its drafts.

    `step_ms` is a full draft's share for each token, `draft_ms` what drafts of 1, 2 ... tokens
    take: so many steps, or a block, which is one call whatever its length. `n_proposed` is how many
    it drafted at most; where that is 0, the times are those of asking it.
    """
    drafter.check(target)
    draft_ms, n_proposed = _measure_drafts(drafter, target, repeats, n_threads)
    facts = drafter.describe()
    return {
        "name": drafter.name,
        **facts,
        "n_proposed": n_proposed,
        "note": drafter.note,
        "max_draft": drafter.max_draft,
        "is_stepwise": drafter.is_stepwise,
        "step_ms": draft_ms[-1] / len(draft_ms),
        "draft_ms": draft_ms,
        "trained_acceptance": trained_acceptance(facts.get("path")),
    }


def trained_acceptance(path: str | None) -> list[float]:
    """For each token of a draft, how often training found it and all before right on held-out text.

    [] for a file that no training of this package wrote.
    """
    if path is None:
        return []
    try:
        key = read_key(Path(path), "pyllama_spec.train.acceptance")
        said = key.value if key is not None else b"[]"
        return [float(rate) for rate in json.loads(said)] if isinstance(said, bytes) else []
    except (ModelLoadError, TypeError, ValueError):
        return []


def _measure_drafts(
    drafter: Drafter, target: Model, repeats: int, n_threads: int | None
) -> tuple[list[float], int]:
    """The median milliseconds of drafts of 1, 2 ... tokens, and the longest draft's length."""
    layers = drafter.target_layers
    max_draft = max(drafter.max_draft, 1)
    over, longest = perf_counter() + DRAFT_S, 0
    asked = IsolatedDrafter(drafter, target.info.n_vocab)

    def measure(n: int, tokens: list[int]) -> float:
        """Measures drafts of n tokens."""
        nonlocal longest
        times: list[float] = []
        for _ in range(repeats + 1):
            if len(times) > 1 and perf_counter() > over:
                break
            start = perf_counter()
            (draft,) = asked.propose([DraftRequest(0, tokens, n)])
            times.append((perf_counter() - start) / max(len(draft.ids), 1))
            longest = max(longest, len(draft.ids))
            if asked.failures:
                raise ArgumentError(
                    "draft", problem=f"{drafter.name}: {asked.failures[0][0]}",
                    remedy="mend it, or leave it out to measure the target alone",
                )  # fmt: skip
        return 1e3 * statistics.median(times[1:])

    with (
        Context(target, n_ctx=2 * _N_PREFIX, n_threads=n_threads, target_layers=layers) as context,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # of a failure, which is raised here
        drafter.attach(context)
        batch, ids = Batch(_N_PREFIX), target.vocab.tokenize(_TEXT) or [target.vocab.bos or 0]
        tokens = (ids * (1 + _N_PREFIX))[: 1 + _N_PREFIX]
        batch.extend(tokens[:-1], 0)
        context.decode(batch)
        rows = [context.layer_input(layer) for layer in layers]
        asked.begin_request(0, remember=False, user="")
        asked.resume_at(0, 0, [])
        asked.commit([Committed(0, tokens, 0, rows)])
        if asked.is_stepwise:
            step = measure(max_draft, tokens)
            return [step * n for n in range(1, max_draft + 1)], longest
        draft_ms: list[float] = []
        for n in range(1, max_draft + 1):
            # A block is one call, whatever its length.
            is_late = draft_ms and perf_counter() > over
            draft_ms.append(draft_ms[-1] if is_late else measure(n, tokens) * n)
        return draft_ms, longest


def _one_pass(
    context: Context, batch: Batch, token: int, max_rows: int
) -> Iterator[tuple[int, float]]:
    """Rows and seconds of each decode. Positions grow, since a recurrent state cannot roll back."""
    pos = _N_PREFIX
    for n_rows in in_order(max_rows):
        times: list[float] = []
        for _ in range(3):
            batch.clear()
            batch.extend([token] * n_rows, pos, output_all=True)
            start = perf_counter()
            context.decode(batch)
            times.append(perf_counter() - start)
            pos += n_rows
        # The first decode of a width builds its graph; a round of the loop mostly reuses one.
        yield n_rows, min(times[1:])
