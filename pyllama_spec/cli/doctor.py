"""doctor: prints versions and devices, and measures the cost of a verify batch."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any

from pyllama_spec.cli import diagnostics
from pyllama_spec.cli.options import add_options, given, path_argument
from pyllama_spec.cli.own_draft import HELP, own_draft
from pyllama_spec.cli.wording import whole_number
from pyllama_spec.drafters import Drafter, DraftOptions, needs_file
from pyllama_spec.drafters.registry import AUTO, MTP, make_drafter_for, open_before, wants_head
from pyllama_spec.engine import Model, server_devices, set_rpc_timeout
from pyllama_spec.engine.model import in_words
from pyllama_spec.llama.open_options import OpenOptions
from pyllama_spec.options import options_of
from pyllama_spec.speculative.stats import plural
from pyllama_spec.terminal import ProgressBar, fitted

# The share of an idle machine is 0.9 and more: threads that wait for each other poll.
_BUSY = 0.75
_OF_PLACES = [
    one.name for one in options_of(OpenOptions).values() if one.group in ("target", "layers")
]
_INSTEAD = "give a draft's file, or leave -d out to measure the target alone"


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
        f"[{diagnostics.MAX_ROWS}, or what the draft can fill]")  # fmt: skip
    add("--repeat", dest="repeats", type=whole_number(1, 10**6), default=5, metavar="N",
        help="passes over all widths")  # fmt: skip
    add_options(parser, OpenOptions, "target", "layers")
    add("--json", action="store_true", help="print one JSON object")
    add_options(parser, OpenOptions, "threads")
    parser.set_defaults(run=_run_doctor)


def _run_doctor(args: argparse.Namespace) -> int:
    result = diagnostics.report()
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
        _print_costs(result["verify_cost"], args.max_rows, args.repeats)
    if "draft" in result:
        _print_draft(result["draft"], result["verify_cost"], result["model"]["n_vocab"])
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
            drafter = open_before(draft, args.model_path, options, _INSTEAD)
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
        result["model"] = diagnostics.describe_model(model)
        if not args.json:
            _print_model(result["model"])
        if args.draft is not None and drafter is None:
            drafter = make_drafter_for(model, args.draft, _draft_options(args.draft, opening))
            opened.callback(drafter.close)
        if drafter is not None:
            result.update(_measured_draft(args, model, drafter))
        if args.max_rows is None:
            widest = diagnostics.MAX_ROWS
            if drafter is not None and (max_draft := drafter.max_draft):
                widest = min(widest, 1 + max_draft)
            args.max_rows = widest
        bar = ProgressBar("measuring verify batches")
        bar.draw(0.0)
        costs = diagnostics.measure_verify_cost(
            model,
            max_rows=args.max_rows,
            repeats=args.repeats,
            n_threads=args.n_threads,
            progress=bar,
        )
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
        facts = diagnostics.describe_draft(
            drafter, model, repeats=args.repeats, n_threads=args.n_threads
        )
    finally:
        bar.clear()
    return {"draft": facts}


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


def _print_costs(costs: list[dict[str, Any]], n_asked: int, repeats: int) -> None:
    print("\nA verify batch of n rows (1 pending + n-1 drafted), over one row:\n")
    print(f"{'rows':>5} {'ms':>9} {'x one row':>10} {'in single passes':>17}   a round pays above")
    for cost in costs:
        n, ratio = cost["n_rows"], cost["ratio"]
        pays = f"{ratio:.2f} tokens per round" if n > 1 else ""
        passes = _passes(cost) if n > 1 else ""
        print(f"{n:>5} {cost['ms']:>9.2f} {ratio:>10.2f} {passes:>17}   {pays}".rstrip())
    _print_trust(costs, n_asked, repeats)


def _passes(cost: dict[str, Any]) -> str:
    """The lowest and the highest ratio of the passes."""
    if cost["n_passes"] < 2:
        return "one pass"
    return f"{cost['lowest']:.2f} .. {cost['highest']:.2f}"


def _print_trust(costs: list[dict[str, Any]], n_asked: int, repeats: int) -> None:
    """Prints how reliable the figures are."""
    n_passes = min(cost["n_passes"] for cost in costs)
    if len(costs) < n_asked or n_passes < repeats:
        _paragraph(
            f"There was time for {len(costs)} of {n_asked} widths and {n_passes} of {repeats} "
            f"passes: doctor measures verify batches for {diagnostics.VERIFY_S:.0f} s at most. "
            "--max-rows and --repeat ask for less."
        )
    share = costs[0]["own_share"]
    if share < _BUSY:
        _paragraph(
            "The machine is busy with something else: the threads of this measurement had a core "
            f"for {share:.0%} of the time. On an idle machine the figures may differ: measure "
            "again when the other programs have ended, or with one thread for each free core (-t)."
        )


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


def _print_draft(draft: dict[str, Any], costs: list[dict[str, Any]], n_vocab: int) -> None:
    print()
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
    if draft["n_proposed"]:
        _print_draft_costs(draft, costs)
    else:
        _field("a draft", "none for doctor's short text: bench measures it on your prompts")


def _print_draft_costs(draft: dict[str, Any], costs: list[dict[str, Any]]) -> None:
    step, draft_ms = draft["step_ms"], draft["draft_ms"]
    share = step / costs[0]["ms"]
    if draft["is_stepwise"]:
        _field("a step", f"{step:.2f} ms for each drafted token, {share:.3f} x one row")
    else:
        _field("a draft", f"one call for up to {draft['max_draft']} tokens")
    if len(costs) > 1:
        print("\nDraft and batch together, by the medians above:\n")
        print(" drafted  draft ms   a round pays above")
    above: dict[int, float] = {}
    for cost in costs[1:]:
        n = cost["n_rows"] - 1
        if n > len(draft_ms):
            break
        ms = draft_ms[n - 1]
        above[n] = cost["ratio"] + ms / costs[0]["ms"]
        print(f"{n:>8} {ms:>9.2f}   {_pays(n, above[n])}")
    if said := conclusion(draft["trained_acceptance"], above):
        _paragraph(said)
