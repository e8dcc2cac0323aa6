"""doctor: prints versions and devices, measures verify batches, and tries a draft."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from time import perf_counter, process_time
from typing import Any

import numpy as np

from pyllama_spec._version import __version__
from pyllama_spec.cli.options import DRAFT_HELP, add_options, given, own_draft, path_argument
from pyllama_spec.drafters import Drafter, DraftOptions
from pyllama_spec.drafters.registry import make_drafter_for, open_before, wants_head
from pyllama_spec.engine import (
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
from pyllama_spec.engine.checks import count
from pyllama_spec.engine.media import joined
from pyllama_spec.engine.model import in_words
from pyllama_spec.engine.system import backends
from pyllama_spec.errors import ArgumentError
from pyllama_spec.llama.eyes import Eyes
from pyllama_spec.llama.open_options import OpenOptions
from pyllama_spec.options import options_of
from pyllama_spec.speculative.row_timing import measure_rows
from pyllama_spec.terminal import ProgressBar, fitted

MAX_ROWS = 16
# With the time for opening, less than a minute.
_VERIFY_S, _TRIAL_S = 20.0, 30.0
# What a draft is tried on: the answers repeat nothing, or the request.
_ORDINARY = (
    "Why is the sky blue? Answer in a paragraph.",
    "Write a Python function that merges two sorted lists.",
    "Plan a birthday party for ten children in short points.",
)
_REPEATING = "Repeat this list, word for word:\n" + "\n".join(
    f"{i}. The {colour} bicycle of the {who} stands behind the {where}."
    for i, (colour, who, where) in enumerate(
        (("red", "baker", "old mill"), ("green", "teacher", "town hall"),
         ("blue", "gardener", "harbour wall"), ("yellow", "painter", "railway station")), 1,
    )
)  # fmt: skip
_N_TOKENS, _N_PASSES = 64, 3
# What a draft has to gain: less may be the noise of the clock.
_PAYS = 1.03
# The share of an idle machine is 0.9 and more: threads that wait for each other poll.
_BUSY = 0.75
_PICTURE, _SOUND_S = (1024, 768), 10
_PLACES = ("target", "projector", "layers")
_OF_PLACES = [one.name for one in options_of(OpenOptions).values() if one.group in _PLACES]


def add_doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command `doctor`."""
    parser = commands.add_parser(
        "doctor", help="print versions and devices, measure verify batches, and try a draft"
    )
    add = parser.add_argument
    add("-m", "--model", dest="model_path", type=path_argument, metavar="MODEL",
        help="the target; without it, no measurement")  # fmt: skip
    add("-d", "--draft",
        help=f"{DRAFT_HELP}: does it fit, does it pay")  # fmt: skip
    add("--max-rows", type=int, metavar="N",
        help="the widest verify batch that is measured, 2 to 64 "
        f"[{MAX_ROWS}, or what the draft can fill]")  # fmt: skip
    add_options(parser, OpenOptions, *_PLACES)
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
    if "verify_cost" in result:
        _print_costs(result["verify_cost"], result["own_share"], args.max_rows)
    if eyes := result.get("projector"):
        _field(
            "projector",
            f"{eyes['path']}: {eyes['size_bytes'] / 1e6:.1f} MB of weights; a "
            f"{eyes['read']} takes {eyes['n_tokens']} tokens and {eyes['read_s']:.2f} s",
        )
    if "draft" in result:
        _print_draft(result["draft"], result["model"]["n_vocab"])
    return 0


def _measure(args: argparse.Namespace, result: dict[str, Any]) -> None:
    """Opens the model and its draft, and adds their measurements."""
    if args.max_rows is not None:
        count(args.max_rows, "max_rows", 2, 64)
    with ExitStack() as opened:
        drafter = None
        opening = OpenOptions(args.model_path, n_threads=args.n_threads, **given(args, _OF_PLACES))
        draft = None if args.draft is None else own_draft(args.draft)
        if draft is not None:
            # Faults of the draft are reported before the target is loaded.
            own = isinstance(draft, Drafter)  # opened already: no option is for it
            options = DraftOptions() if own else _draft_options(opening)
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
        if opening.mmproj_path is not None:
            bar = ProgressBar("trying the projector")
            bar.draw(0.0)
            result["projector"] = measure_projector(model, opening)
            bar.clear()
        if args.draft is not None and drafter is None:
            drafter = make_drafter_for(model, args.draft, _draft_options(opening))
            opened.callback(drafter.close)
        if args.max_rows is None:
            args.max_rows = MAX_ROWS
            if drafter is not None and drafter.max_draft:
                args.max_rows = min(MAX_ROWS, 1 + drafter.max_draft)
        bar = ProgressBar("measuring verify batches")
        bar.draw(0.0)
        result.update(measure_verify_cost(model, args.max_rows, args.n_threads))
        bar.clear()
        if drafter is not None and drafter.max_draft:
            result["draft"] = try_draft(model, drafter, opening, ProgressBar("trying the draft"))
        elif drafter is not None and not args.json:
            _field("draft", f"{drafter.name} drafts nothing: there is nothing to try")


def _draft_options(opening: OpenOptions) -> DraftOptions:
    # The length that a generation drafts, where the controller stops what does not pay.
    return opening.draft_options(progress=None, is_adaptive=True)


def _on_servers(args: argparse.Namespace) -> list[dict[str, Any]]:
    if args.rpc_timeout is not None:
        set_rpc_timeout(args.rpc_timeout)
    devices_by_server = (server_devices(endpoint) for endpoint in args.rpc_servers or ())
    return [asdict(device) for devices in devices_by_server for device in devices]


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
        rollback = "not at all, so nothing is drafted: its state has no snapshots here"
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
    model: Model, max_rows: int, n_threads: int | None, most_s: float = _VERIFY_S
) -> dict[str, Any]:
    """Times decodes of 1 .. max_rows rows, or of some widths where that takes more than most_s.

    Returns:
        `verify_cost`: by width `n_rows`, `ms`, and `ratio` over one row: what a round of one
        pending and n_rows - 1 drafted tokens has to commit. `own_share`: how much of its threads'
        time this process had, 1.0 on an idle machine.
    """
    with Context(model, n_ctx=max_rows, n_threads=n_threads) as context:
        begun, own = perf_counter(), process_time()
        seconds = measure_rows(context, max_rows, most_s, min(most_s, 2.0))
        wall_s, own_s = perf_counter() - begun, process_time() - own
        share = own_s / (wall_s * context.n_threads)
    costs = [
        {"n_rows": n, "ms": round(1e3 * s, 4), "ratio": round(s / seconds[1], 4)}
        for n, s in sorted(seconds.items())
    ]
    return {"verify_cost": costs, "own_share": round(share, 4)}


def measure_projector(model: Model, opening: OpenOptions) -> dict[str, Any] | None:
    """What a projector costs: its bytes, and the tokens and seconds of a picture or a sound."""
    path = opening.mmproj_path
    eyes = None if path is None else Eyes.open(
        model, path, n_threads=opening.n_threads, **opening.arguments("projector")
    )  # fmt: skip
    if eyes is None:
        return None
    projector, (width, height) = eyes.projector, _PICTURE
    try:
        begun = perf_counter()
        if projector.sees:
            parts = projector.image(np.full((height, width, 3), 127, np.uint8))
        else:
            parts = projector.audio(np.zeros(_SOUND_S * projector.sample_rate, np.float32))
        return {
            "path": str(projector.path), "size_bytes": projector.memory_bytes,
            "read": f"picture of {width}x{height}" if projector.sees else f"sound of {_SOUND_S} s",
            "n_tokens": len(joined(parts)[0]), "read_s": perf_counter() - begun,
        }  # fmt: skip
    finally:
        eyes.close()


def try_draft(
    model: Model, drafter: Drafter, opening: OpenOptions, progress: Callable[[float], None]
) -> dict[str, Any]:
    """The facts about a draft, and what it gives on prompts of doctor's own.

    Plain and drafted text are generated in turn, for some 30 s; the quicker of some passes counts.
    The draft is opened as a generation opens it, with copies beside a model and a controller.
    """
    from pyllama_spec.bench.config import BenchConfig
    from pyllama_spec.bench.sides import open_sides
    from pyllama_spec.chat.prompt_file import Prompt
    from pyllama_spec.chat.template import ChatTemplate

    drafter.check(model)
    template, texts = ChatTemplate.of_model(model), (_ORDINARY[0], _REPEATING, *_ORDINARY[1:])
    prompts = [
        Prompt("", "", ({"role": "user", "content": text},)).tokens(model.vocab, template)
        for text in texts
    ]
    config = BenchConfig(**_values_of(opening), draft=drafter, n_tokens=_N_TOKENS)
    plain, (spec,) = open_sides(model, config, max(map(len, prompts)) + _N_TOKENS)
    quickest: dict[int, tuple[float, float]] = {}
    n_proposed, over = 0, perf_counter() + _TRIAL_S
    with plain, spec, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a failure, which is raised here
        for n_done in range(_N_PASSES * len(prompts)):
            i = n_done % len(prompts)
            if quickest and perf_counter() > over:
                break
            pair = [side.run(prompts[i], _N_TOKENS) for side in (plain, spec)]
            stats = pair[1].stats
            if stats.reason_off_error is not None:
                raise ArgumentError(
                    "draft", problem=f"{drafter.name}: {stats.reason_off}",
                    remedy="mend it, or leave it out to measure the target alone",
                )  # fmt: skip
            n_proposed += stats.proposed
            took = [max(run.timing.decode_s, 1e-9) for run in pair]
            before = quickest.get(i, took)
            quickest[i] = (min(before[0], took[0]), min(before[1], took[1]))
            progress((n_done + 1) / (_N_PASSES * len(prompts)))
        progress(1.0)
        facts = drafter.describe()
    repeating = quickest.pop(1, None)
    sums = [sum(one[side] for one in quickest.values()) for side in (0, 1)]
    gain = sums[0] / sums[1]
    gain_repeating = None if repeating is None else repeating[0] / repeating[1]
    return {
        "name": drafter.name, **facts, "note": drafter.note, "max_draft": drafter.max_draft,
        "n_proposed": n_proposed, "gain": gain, "gain_repeating": gain_repeating,
        "verdict": verdict(gain, gain_repeating, n_proposed),
    }  # fmt: skip


def _values_of(opening: OpenOptions) -> dict[str, Any]:
    return {name: getattr(opening, name) for name in ("model_path", "n_threads", *_OF_PLACES)}


def verdict(gain: float, gain_repeating: float | None, n_proposed: int) -> str:
    """Whether a draft pays here, by its speed over plain decoding; None if that was not tried."""
    if not n_proposed:
        return "cannot be said: it proposed nothing for doctor's prompts; bench takes your own"
    where = "" if gain_repeating is None else f", {gain_repeating:.2f} where a text repeats itself"
    if gain >= _PAYS:
        return f"pays: {gain:.2f} times plain decoding{where}"
    if gain_repeating is not None and gain_repeating >= _PAYS:
        return f"pays for copies only: {gain:.2f} times plain decoding{where}"
    return f"does not pay here: {gain:.2f} times plain decoding{where}"


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
    _field("verdict", draft["verdict"])


def _print_costs(costs: list[dict[str, Any]], own_share: float, n_asked: int) -> None:
    """A row for each width, and what to make of it."""
    print("\nA verify batch of n rows (1 pending + n-1 drafted) pays where a round commits more")
    print("tokens than it costs, in decodes of one row:\n")
    print(f"{'rows':>5} {'ms':>9} {'x one row':>10}")
    for cost in costs:
        print(f"{cost['n_rows']:>5} {cost['ms']:>9.2f} {cost['ratio']:>10.2f}")
    if len(costs) < n_asked:
        _paragraph(
            f"There was time for {len(costs)} of {n_asked} widths: --max-rows asks for less."
        )
    if own_share < _BUSY:
        _paragraph(
            "The machine is busy with something else: the threads of this measurement had a core "
            f"for {own_share:.0%} of the time. On an idle machine the figures may differ: measure "
            "again when the other programs have ended, or with one thread for each free core (-t)."
        )
    print()


def _paragraph(text: str) -> None:
    print(f"\n{fitted(text, sys.stdout, 0)}")


def _sizes(draft: dict[str, Any]) -> list[str]:
    """The sizes of a draft's weights."""
    out = []
    if "size_bytes" in draft:
        kind = f" of type {draft['weights']}" if draft.get("weights") else ""
        out.append(f"{draft['size_bytes'] / 1e6:.1f} MB of weights{kind}")
    return [*out, draft["architecture"]] if "architecture" in draft else out
