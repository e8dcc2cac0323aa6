"""doctor: prints versions and devices, and measures the cost of a verify batch and of a draft."""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from pyllama_spec._version import __version__
from pyllama_spec.cli.options import HELP, add_options, given, own_draft, path_argument
from pyllama_spec.cli.wording import whole_number
from pyllama_spec.drafters import Committed, Drafter, DraftOptions, DraftRequest, needs_file
from pyllama_spec.drafters.registry import AUTO, MTP, make_drafter_for, open_before, wants_head
from pyllama_spec.engine import (
    Batch,
    Context,
    Model,
    devices,
    engine_version,
    exact_rows,
    row_kernels,
    server_devices,
    set_rpc_timeout,
    supports_gpu,
    system_info,
)
from pyllama_spec.engine.model import in_words
from pyllama_spec.engine.system import backends
from pyllama_spec.errors import ArgumentError, ModelLoadError
from pyllama_spec.gguf.reader import read_key
from pyllama_spec.llama.open_options import OpenOptions
from pyllama_spec.options import options_of
from pyllama_spec.speculative.isolated_drafter import IsolatedDrafter
from pyllama_spec.speculative.row_timing import in_order
from pyllama_spec.speculative.stats import plural
from pyllama_spec.terminal import ProgressBar, fitted

MAX_ROWS = 16
# With the time for opening, less than a minute.
VERIFY_S, DRAFT_S = 40.0, 10.0
_N_PREFIX = 128
# What drafters are measured after, again and again: lookups find it.
_TEXT = '{"id": 7, "name": "a"}\n'
# The share of an idle machine is 0.9 and more: threads that wait for each other poll.
_BUSY = 0.75
_OF_PLACES = [
    one.name for one in options_of(OpenOptions).values() if one.group in ("target", "layers")
]


def add_doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command `doctor`."""
    parser = commands.add_parser(
        "doctor", help="print versions and devices, and measure the cost of a verify batch"
    )
    add = parser.add_argument
    add("-m", "--model", dest="model_path", type=path_argument, metavar="MODEL",
        help="the target; without it, no measurement")  # fmt: skip
    add("-d", "--draft",
        help="as generate's -d: the GGUF of a draft, mtp, auto, suffix and so on, "
        f"{HELP}: does it fit, its cost")  # fmt: skip
    add("--max-rows", type=whole_number(2, 64), metavar="N",
        help="the widest verify batch that is measured, 2 to 64 "
        f"[{MAX_ROWS}, or what the draft can fill]")  # fmt: skip
    add("--repeat", dest="repeats", type=whole_number(1, 10**6), default=5, metavar="N",
        help="passes over all widths")  # fmt: skip
    add_options(parser, OpenOptions, "target", "layers")
    add("--json", action="store_true", help="print one JSON object")
    add_options(parser, OpenOptions, "threads")
    parser.set_defaults(run=_run_doctor)


def _run_doctor(args: argparse.Namespace) -> int:
    result = report()
    result["devices"] += _on_servers(args)
    if args.draft is not None and args.model_path is None:
        print("pyllama-spec doctor: -d needs -m, the target that it drafts for", file=sys.stderr)
        return 2
    is_text = not args.json
    if is_text:
        _print_system(result)
    if args.model_path is not None:
        _measure(args, result)
    if args.json:
        print(json.dumps(result, indent=1, default=str))
        return 0
    if "draft" in result:
        _print_draft(result["draft"], result["model"]["n_vocab"])
    if "verify_cost" in result:
        _print_costs(result["verify_cost"], result.get("draft"), args.max_rows)
    return 0


def _measure(args: argparse.Namespace, result: dict[str, Any]) -> None:
    """Opens the model and its draft, and adds their measurements."""
    with ExitStack() as opened:
        drafter = None
        opening = OpenOptions(args.model_path, **given(args, _OF_PLACES))
        draft = None if args.draft is None else own_draft(args.draft)
        if draft is not None:
            # Faults of the draft are reported before the target is loaded.
            own = isinstance(draft, Drafter)  # opened already: no option is for it
            options = DraftOptions() if own else _draft_options(args.draft, opening)
            drafter = open_before(draft, args.model_path, options)
            if drafter is not None and not own:
                opened.callback(drafter.close)
        bar = ProgressBar("loading the model")
        bar.draw(0.0)
        model = Model(
            args.model_path, **opening.model_arguments(), progress=bar,
            load_mtp=wants_head(args.draft if drafter is None else drafter, args.model_path),
        )  # fmt: skip
        opened.enter_context(model)
        bar.clear()
        result["model"] = describe_model(model)
        if not args.json:
            _print_model(result["model"])
        if args.draft is not None and drafter is None:
            drafter = make_drafter_for(model, args.draft, _draft_options(args.draft, opening))
            opened.callback(drafter.close)
        if drafter is not None:
            result.update(_measured_draft(args, model, drafter))
        if args.max_rows is None:
            widest = MAX_ROWS
            if drafter is not None and (max_draft := drafter.max_draft):
                widest = min(widest, 1 + max_draft)
            args.max_rows = widest
        bar = ProgressBar("measuring verify batches")
        bar.draw(0.0)
        costs = measure_verify_cost(
            model, max_rows=args.max_rows, repeats=args.repeats, n_threads=args.n_threads,
            progress=bar,
        )  # fmt: skip
    result["verify_cost"] = [
        {name: round(value, 4) for name, value in asdict(cost).items()} for cost in costs
    ]


def _draft_options(draft: str, opening: OpenOptions) -> DraftOptions:
    # The length that a generation drafts, where the controller stops what does not pay.
    options = opening.draft_options(progress=None, is_adaptive=True)
    has_model = draft in (AUTO, MTP) or needs_file(draft)
    return replace(options, lookup=0 if has_model else None)


def _on_servers(args: argparse.Namespace) -> list[dict[str, Any]]:
    if args.rpc_timeout is not None:
        set_rpc_timeout(args.rpc_timeout)
    devices_by_server = (server_devices(endpoint) for endpoint in args.rpc_servers or ())
    return [asdict(device) for devices in devices_by_server for device in devices]


def _measured_draft(args: argparse.Namespace, model: Model, drafter: Drafter) -> dict[str, Any]:
    """The draft's measurements as a part of the result; {} for one that never drafts.

    The draft alone: the copies that a generation adds cost nothing.
    """
    if not drafter.max_draft:
        if not args.json:
            _field("draft", f"{drafter.name} drafts nothing: there is nothing to measure")
        return {}
    bar = ProgressBar("measuring the draft")
    bar.draw(0.0)
    try:
        facts = describe_draft(drafter, model, repeats=args.repeats, n_threads=args.n_threads)
    finally:
        bar.clear()
    return {"draft": facts}


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
    own_share: float


def measure_verify_cost(
    model: Model,
    *,
    max_rows: int = MAX_ROWS,
    repeats: int = 5,
    n_threads: int | None = None,
    budget_s: float = VERIFY_S,
    progress: Callable[[float], None] | None = None,
) -> list[VerifyCost]:
    """Times decodes of 1 .. max_rows rows after a short prefix, interleaved, for some budget_s.

    A wider batch takes no less than a narrower one: where it seems to, another program disturbed
    the narrower one, and the time of the wider counts for both. The first of all passes is not
    counted if another one is whole. The result has what was measured until the time was over.
    """
    n_ctx = _N_PREFIX + 4 * max_rows * max_rows + max_rows
    passes: list[dict[int, float]] = []
    with Context(model, n_ctx=n_ctx, n_threads=n_threads) as context:
        begun, own = perf_counter(), process_time()
        for n_rows, seconds in _decodes(context, max_rows, repeats + 1):
            if n_rows == 1:
                passes.append({})
            passes[-1][n_rows] = seconds
            if progress is not None:
                done = (len(passes) - 1 + len(passes[-1]) / max_rows) / (repeats + 1)
                progress(min(max(done, (perf_counter() - begun) / budget_s), 1.0))
            if perf_counter() - begun > budget_s:
                break
        wall_s, own_s = perf_counter() - begun, process_time() - own
        share = own_s / (wall_s * context.n_threads)
    if progress is not None:
        progress(1.0)
    is_any_whole = any(len(one) == max_rows for one in passes[1:])
    counted = [_as_widths_grow(one) for one in passes[is_any_whole:]]
    # Not each width was in as many passes.
    widths = sorted(passes[is_any_whole])

    def medians(*, over_one_row: bool) -> dict[int, float]:
        by_rows = {n: [one for one in counted if n in one] for n in widths}
        return _as_widths_grow({
            n: statistics.median(one[n] / (one[1] if over_one_row else 1.0) for one in those)
            for n, those in by_rows.items()
        })  # fmt: skip

    seconds_of, ratio_of = medians(over_one_row=False), medians(over_one_row=True)
    return [VerifyCost(n, 1e3 * seconds_of[n], ratio_of[n], share) for n in widths]


def _as_widths_grow(seconds: dict[int, float]) -> dict[int, float]:
    """The costs by rows, made monotonic: none above that of a wider batch."""
    out, least = {}, math.inf
    for n in sorted(seconds, reverse=True):
        out[n] = least = min(least, seconds[n])
    return out


def _decodes(context: Context, max_rows: int, n_passes: int) -> Iterator[tuple[int, float]]:
    """Rows and seconds of each decode. Positions grow, since a recurrent state cannot roll back."""
    batch, token = Batch(max(context.n_batch, max_rows)), context.model.vocab.bos or 0
    for _ in range(n_passes):
        context.memory.clear()
        batch.clear()
        batch.extend([token] * _N_PREFIX, 0, output_last=True)
        context.decode(batch)
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


def _field(name: str, text: object) -> None:
    """A line, or several on a narrow terminal."""
    print(fitted(f"{name:<13} {text}", sys.stdout, 14), flush=True)


def _print_system(result: dict[str, Any]) -> None:
    for key in ("pyllama_spec", "engine", "python", "platform", "system_info"):
        _field(key, result[key])
    kernels = ", ".join(f"{kind} {name}" for kind, name in result["row_kernels"].items())
    _field("row kernels", kernels or "none: n rows cost nearly n times as much as one")
    backends = result["backends"].items()
    # Servers are not searched for.
    lines = (name if n or name == "RPC" else f"{name} (finds no device)" for name, n in backends)
    _field("backends", ", ".join(lines))
    for device in result["devices"]:
        total = device["total_bytes"] / 1e9
        _field("device", f"{device['name']}: {device['description']}, {total:.1f} GB")


def _print_model(model: dict[str, Any]) -> None:
    _field("model", model["description"])
    _field("layers", model["layers"])
    n_mb = model["repacked_bytes"] / 1e6
    _field("weights", f"{n_mb:.0f} MB repacked for our kernels" if n_mb else "as in the file")
    _field("rollback", model["rollback"])
    n = model["exact_rows"]
    same = (
        f"batches of up to {n} rows" if n > 1 else "single rows only: a near tie may fall otherwise"
    )
    _field("exact rows", same)


def _print_draft(draft: dict[str, Any], n_vocab: int) -> None:
    # One without a file fits every model.
    fits = ["fits"] if "path" in draft else [f"up to {draft['max_draft']} tokens"]
    _field("draft", f"{draft.get('path', draft['name'])}: {', '.join([*fits, *_sizes(draft)])}")
    # Drafters of other packages say what they like.
    if "placement" in draft:
        _field("its layers", f"on {in_words(draft['placement'])}")
    if "reads" in draft:
        _field("reads", draft["reads"])
    if "shared_tokens" in draft:
        n, of = draft["shared_tokens"], draft["target_tokens"]
        _field("vocabulary", f"{draft['vocabulary']}, {n} of {of} tokens ({n / of:.0%}) shared")
    n_choices = draft.get("n_output")
    if n_choices is not None and n_choices < n_vocab:
        _field("chooses", f"among {n_choices} of {n_vocab} tokens, those of the text among them")
    if draft["note"]:
        _field("note", draft["note"])
    if not draft["n_proposed"]:
        _field("a draft", "none for doctor's short text: bench measures it on your prompts")
    elif draft["is_stepwise"]:
        _field("a step", f"{draft['step_ms']:.2f} ms for each drafted token")
    else:
        _field("a draft", f"one call for up to {draft['max_draft']} tokens")


def _print_costs(costs: list[dict[str, Any]], draft: dict[str, Any] | None, n_asked: int) -> None:
    """A row for each width, with what a draft of that length takes, and what to make of it."""
    draft_ms = draft["draft_ms"] if draft is not None and draft["n_proposed"] else []
    above = {
        cost["n_rows"] - 1: cost["ratio"] + ms / costs[0]["ms"]
        for cost in costs[1:]
        for ms in (draft_ms[cost["n_rows"] - 2 :][:1] if draft_ms else [0.0])
    }
    print("\nA verify batch of n rows (1 pending + n-1 drafted), over one row:\n")
    column = f"{'draft ms':>10}" if draft_ms else ""
    print(f"{'rows':>5} {'ms':>9} {'x one row':>10}{column}   a round pays above")
    for cost in costs:
        n = cost["n_rows"] - 1
        took = f"{draft_ms[n - 1]:>10.2f}" if 0 < n <= len(draft_ms) else " " * len(column)
        pays = _pays(n, above[n]) if n in above else ""
        print(f"{n + 1:>5} {cost['ms']:>9.2f} {cost['ratio']:>10.2f}{took}   {pays}".rstrip())
    if len(costs) < n_asked:
        _paragraph(
            f"There was time for {len(costs)} of {n_asked} widths: doctor measures for "
            f"{VERIFY_S:.0f} s. --max-rows and --repeat ask for less."
        )
    share = costs[0]["own_share"]
    if share < _BUSY:
        _paragraph(
            "The machine is busy with something else: the threads of this measurement had a core "
            f"for {share:.0%} of the time. On an idle machine the figures may differ: measure "
            "again when the other programs have ended, or with one thread for each free core (-t)."
        )
    if draft_ms and draft is not None and (said := conclusion(draft["trained_acceptance"], above)):
        _paragraph(said)


def _paragraph(text: str) -> None:
    print(f"\n{fitted(text, sys.stdout, 0)}")


def _pays(n_drafted: int, above: float) -> str:
    """The tokens per round above which the round pays; a round gives at most its draft + 1."""
    if above < n_drafted + 1:
        return f"{above:.2f} tokens per round"
    return f"never: {above:.2f} tokens, and {n_drafted + 1} are the most"


def conclusion(rates: Sequence[float], above: Mapping[int, float]) -> str:
    """Whether a draft pays at the acceptance of its training; "" if the file has none.

    `rates` say for each token of a draft how often it and those before it were right, `above` the
    tokens per round above which a round pays, by drafted tokens.
    """
    per_round = {n: 1.0 + sum(rates[:n]) for n in above if n <= len(rates)}
    if not per_round:
        return ""
    best = max(per_round, key=lambda n: per_round[n] / above[n])
    got, needed = per_round[best], above[best]
    n_drafted = plural(best, "drafted token")
    begin = f"With the acceptance that training measured ({rates[0]:.2f} for the first token)"
    if got <= needed:
        return (
            f"{begin}, no length pays here: {n_drafted} would give {got:.2f} tokens per round, and "
            f"{needed:.2f} are needed"
        )
    give = "gives" if best == 1 else "give"
    return (
        f"{begin}, {n_drafted} {give} {got:.2f} tokens per round, and {needed:.2f} are needed: it "
        f"pays, at {got / needed:.2f} times plain decoding, on texts like those of its training"
    )


def _sizes(draft: dict[str, Any]) -> list[str]:
    """The sizes of a draft's weights."""
    out = []
    if "size_bytes" in draft:
        kind = f" of type {draft['weights']}" if draft.get("weights") else ""
        out.append(f"{draft['size_bytes'] / 1e6:.1f} MB of weights{kind}")
    return [*out, draft["architecture"]] if "architecture" in draft else out
