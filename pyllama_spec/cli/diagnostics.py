"""What this build is, what it runs on, and what a verify batch costs there."""

from __future__ import annotations

import platform
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
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
from pyllama_spec.engine.placement import in_words
from pyllama_spec.engine.system import backends
from pyllama_spec.speculative import ProfitController
from pyllama_spec.speculative.controller.base import ControllerLimits
from pyllama_spec.speculative.row_timing import measure_rows

MAX_ROWS = 16
_N_PREFIX = 128


@dataclass(frozen=True, slots=True)
class VerifyCost:
    """What one decode of n_rows tokens costs.

    Attributes:
        n_rows: tokens in the batch: one pending and n_rows - 1 drafted.
        ms: median milliseconds of the decode.
        ratio: the median of its ratio to a decode of one row in the same pass. A round of this
            width pays when it commits more tokens than this, the draft's own cost aside.
        lowest, highest: the ratio in single passes.
        own_share: how much of its threads' time this process had, of all passes: 1.0 on a machine
            that has nothing else to do.
    """

    n_rows: int
    ms: float
    ratio: float
    lowest: float
    highest: float
    own_share: float


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
    """The facts about a model that matter for speculation."""
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
    progress: Callable[[float], None] | None = None,
) -> list[VerifyCost]:
    """Times decodes of 1 .. max_rows rows after a short prefix, taking turns.

    Args:
        model: the target.
        max_rows: the widest batch.
        repeats: passes over all widths; medians are given, after one pass that is not counted.
        n_threads: as for a context.
        progress: called with 0.0 .. 1.0.
    """
    n_ctx = _N_PREFIX + 4 * max_rows * max_rows + max_rows
    with Context(model, n_ctx=n_ctx, n_threads=n_threads) as context:
        batch = Batch(max(context.n_batch, max_rows))
        token = model.vocab.bos or 0
        passes: list[list[float]] = []
        wall_s = own_s = 0.0
        for i in range(repeats + 1):
            context.memory.clear()
            batch.clear()
            batch.extend([token] * _N_PREFIX, 0, output_last=True)
            context.decode(batch)
            begun, own = perf_counter(), process_time()
            seconds: list[float] = []
            for n, one in enumerate(_one_pass(context, batch, token, max_rows), 1):
                seconds.append(one)
                if progress is not None:
                    progress((i + n / max_rows) / (repeats + 1))
            passes.append(seconds)
            wall_s, own_s = wall_s + perf_counter() - begun, own_s + process_time() - own
        share = own_s / (wall_s * context.n_threads)
    out = []
    for n in range(max_rows):
        ms = 1e3 * statistics.median(times[n] for times in passes[1:])
        ratios = [times[n] / times[0] for times in passes[1:]]
        mid = statistics.median(ratios)
        out.append(VerifyCost(n + 1, ms, mid, min(ratios), max(ratios), share))
    return out


def describe_draft(
    drafter: Drafter, target: Model, *, repeats: int = 5, n_threads: int | None = None
) -> dict[str, Any]:
    """The facts about a draft, and the milliseconds that drafts take.

    `step_ms` is a full draft's share for each token, `draft_ms` what drafts of 1, 2 ... tokens
    take: so many steps, or a block, which is one call whatever its length.

    Raises:
        ArgumentError: it was made for another target, with the first difference.

    """
    drafter.check(target)
    draft_ms = _measure_drafts(drafter, target, repeats, n_threads)
    initial_costs = _initial_costs(drafter, target, n_threads)
    return {
        **drafter.describe(),
        "max_draft": drafter.max_draft,
        "is_stepwise": drafter.is_stepwise,
        "step_ms": draft_ms[-1] / len(draft_ms),
        "draft_ms": draft_ms,
        "opening": pays_above(initial_costs, draft_ms),
    }


def _initial_costs(drafter: Drafter, target: Model, n_threads: int | None) -> dict[int, float]:
    """Milliseconds of verify batches by rows, as the controller begins with them."""
    max_rows = 1 + drafter.max_draft
    layers = tuple(drafter.target_layers)
    with Context(target, n_ctx=2 * _N_PREFIX, n_threads=n_threads, target_layers=layers) as context:
        controller = ProfitController()
        controller.attach(
            ControllerLimits(drafter.max_draft, drafter.is_stepwise, max_rows=max_rows)
        )
        controller.learn_costs(measure_rows(context, max_rows))
        verify_ms: dict[int, float] = controller.describe()["verify_ms"]
    return verify_ms


def pays_above(verify_ms: dict[int, float], draft_ms: list[float]) -> list[dict[str, float]]:
    """For each number of drafted tokens, the tokens per round above which the round pays.

    (verify(1 + n) + draft(n)) / verify(1): what the round takes, in tokens of plain decoding.

    Args:
        verify_ms: milliseconds of a verify batch by its rows; 1 is among them.
        draft_ms: milliseconds of drafts of 1, 2 ... tokens, of as many as are verified.

    """
    plain, drafts = verify_ms[1], [0.0, *draft_ms]
    return [
        {
            "n_drafted": rows - 1,
            "verify_ms": ms,
            "draft_ms": drafts[rows - 1],
            "pays_above": (ms + drafts[rows - 1]) / plain,
        }
        for rows, ms in sorted(verify_ms.items())
    ]


def _measure_drafts(
    drafter: Drafter, target: Model, repeats: int, n_threads: int | None
) -> list[float]:
    """Median milliseconds of drafts of 1, 2 ... tokens, after a short prefix."""
    layers, max_draft = tuple(drafter.target_layers), max(drafter.max_draft, 1)

    def measure(n: int, tokens: list[int]) -> float:
        """Of drafts of n tokens, by token."""
        times: list[float] = []
        for _ in range(repeats + 1):
            start = perf_counter()
            (draft,) = drafter.propose([DraftRequest(0, tokens, n)])
            times.append((perf_counter() - start) / max(len(draft.ids), 1))
        return 1e3 * statistics.median(times[1:])

    with Context(target, n_ctx=2 * _N_PREFIX, n_threads=n_threads, target_layers=layers) as context:
        drafter.attach(context)
        batch, token = Batch(_N_PREFIX), target.vocab.bos or 0
        tokens = [token] * _N_PREFIX
        batch.extend(tokens, 0)
        context.decode(batch)
        rows = [context.layer_input(layer) for layer in layers]
        tokens.append(token)
        drafter.commit([Committed(0, tokens, 0, rows)])
        if drafter.is_stepwise:
            step = measure(max_draft, tokens)
            return [step * n for n in range(1, max_draft + 1)]
        return [measure(n, tokens) * n for n in range(1, max_draft + 1)]


def _one_pass(context: Context, batch: Batch, token: int, max_rows: int) -> Iterator[float]:
    """Seconds per width. Positions grow: a recurrent state could not be taken back."""
    pos = _N_PREFIX
    for n_rows in range(1, max_rows + 1):
        times: list[float] = []
        for _ in range(3):
            batch.clear()
            batch.extend([token] * n_rows, pos, output_all=True)
            start = perf_counter()
            context.decode(batch)
            times.append(perf_counter() - start)
            pos += n_rows
        # The first decode of a width builds its graph; a round of the loop mostly reuses one.
        yield min(times[1:])
