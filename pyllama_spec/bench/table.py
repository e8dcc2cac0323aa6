"""Formats a result as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from pyllama_spec.bench.figures import (
    Comparison,
    PromptResult,
    Spread,
    Totals,
    acceptance_by_depth,
    accepted_histogram,
    by_source,
    ratio,
)
from pyllama_spec.bench.report import is_busy, notes, peer_sums, peer_tps, state_of
from pyllama_spec.bench.result import BenchResult
from pyllama_spec.speculative.draft_sources import sources_in_words

_NOTHING = "-"


def table(result: BenchResult) -> str:
    """The figures as text: prompts, totals, times, acceptance, bandwidth."""
    blocks = [_head(result), _prompts(result), _categories(result), _time(result)]
    blocks += [_transfers(result), _controller(result), _acceptance(result), _bandwidth(result)]
    own = "\n\n".join("\n".join(lines) for lines in blocks if lines)
    if not result.others:
        return own
    parts = [own, *(table(one) for one in result.others), "\n".join(_compared(result))]
    return "\n\n\n".join(parts)


def _compared(result: BenchResult) -> list[str]:
    """The lines of a run's drafts, one per draft."""
    head = ["drafts, beside the same plain texts", "speed-up", "(min .. max)", "end to end",
            "accepted", "per round", "draft", "verify", "same text"]  # fmt: skip
    has_cpu = is_busy(result) and result.comparison.cpu_speedup is not None
    head += ["by processor time"] if has_cpu else []
    rows = []
    for one in (result, *result.others):
        both, around = one.comparison, one.speedups
        rows.append([
            one.setup.label,
            _number(both.speedup, 2),
            _NOTHING if around is None else f"({around.low:.2f} .. {around.high:.2f})",
            _number(both.end_to_end_speedup, 2), _number(both.spec.acceptance_rate, 2),
            _number(both.spec.tokens_per_round, 2), _number(_ms(both.spec.draft_s, both.spec), 2),
            _number(_ms(both.spec.verify_s, both.spec), 2),
            f"{sum(prompt.fork is None for prompt in one.prompts)} of {len(one.prompts)}",
            *([_number(both.cpu_speedup, 2)] if has_cpu else []),
        ])  # fmt: skip
    return [*_aligned([head, *rows]), "draft and verify in ms per token"]


def _head(result: BenchResult) -> list[str]:
    config, setup = result.config, result.setup
    files = setup.provenance.get("files", {})
    names = " + ".join(str(file["name"]) for file in files.values())
    how = "greedy" if config.temperature == 0 else f"temperature {config.temperature:g}"
    load = result.span.get("load_average_start"), result.span.get("load_average_end")
    loads = " and ".join(_NOTHING if one is None else f"{one[0]:.2f}" for one in load)
    lines = [f"NOTE: {note}" for note in notes(result)]
    drafter = setup.drafter + " (chosen by auto)" * setup.is_auto
    lines += [
        f"{names} ({setup.target}), drafter {drafter}, at most {setup.max_draft} per round",
        f"{len(result.prompts)} prompts x {config.repeats} repeats of {config.n_tokens} tokens, "
        + how,
        f"{setup.n_threads} threads; load average {loads} at start and end",
    ]
    return lines


def _prompts(result: BenchResult) -> list[str]:
    """The table of prompts with its total."""
    # With several drafts the first one's result has the peer's answers.
    with_peer = bool(result.peer_failures) or any(prompt.peer for prompt in result.prompts)
    rows = [_row(prompt, with_peer) for prompt in result.prompts]
    all_answers = [answer for prompt in result.prompts for answer in prompt.peer]
    n_same_text = sum(prompt.fork is None for prompt in result.prompts)
    rows.append(
        [
            "all", "", *_figures(result.comparison, result.speedups),
            f"{n_same_text} of {len(result.prompts)}",
            *([_number(peer_tps(all_answers), 1)] if with_peer else []),
        ]
    )  # fmt: skip
    head = [
        "prompt", "category", "plain", "draft", "speed-up", "min..max", "accepted", "a round",
        "same", *(["peer"] if with_peer else []),
    ]  # fmt: skip
    mark = ["SYNTHETIC ACCEPTANCE"] if result.is_synthetic else []
    end = result.comparison.end_to_end_speedup
    return [
        *mark,
        "tokens per second of decoding; total tokens / total seconds; same: the same text",
        *_aligned([head, *rows]),
        f"with the prompts, end to end: speed-up {_number(end, 2)}",
        *_by_processor_time(result),
        *_peer(result),
    ]


def _peer(result: BenchResult) -> list[str]:
    """The peer's speed, acceptance, processor time and equal texts; [] without answers."""
    answers = [answer for prompt in result.prompts for answer in prompt.peer]
    sums = peer_sums(answers)
    if sums is None:
        return []
    both = result.comparison
    n_asked = sum(len(prompt.pairs) for prompt in result.prompts)
    said = f"peer: {_number(sums['tps'], 1)} tokens per second ({sums['timed_by']}), "
    if sums["drafted"] is not None:
        said += f"{sums['accepted'] or 0} of {sums['drafted']} drafted tokens accepted, "
    lines = [f"{said}{sums['same_text']} of {sums['compared_texts']} texts are plain decoding's"]
    # Both sides' time belongs to the same texts only if the peer answered each.
    if sums["cpu_s"] is not None and len(answers) == n_asked:
        sides = (("plain", both.plain), ("with draft", both.spec))
        own = [
            f"{name} {_number(ratio(1e3 * one.cpu_s, one.n_tokens + one.n_texts), 2)}"
            for name, one in sides
        ]
        n = sums["n_tokens"] + sum(answer.is_own_timing for answer in answers)
        lines.append(
            "processor time with the prompts, ms per token: "
            + ", ".join([*own, f"peer {_number(ratio(1e3 * sums['cpu_s'], n), 2)}"])
        )
    return lines


def _by_processor_time(result: BenchResult) -> list[str]:
    """The speed-up by processor time, for a busy machine."""
    speedup = result.comparison.cpu_speedup
    if speedup is None or not is_busy(result):
        return []
    return [f"by processor time of the decoding, as the machine was busy: speed-up {speedup:.2f}"]


def _row(prompt: PromptResult, with_peer: bool) -> list[str]:
    fork = prompt.fork
    same = "yes"
    if fork is not None:
        gap = "" if fork.top2_gap is None else f", gap {fork.top2_gap:.3g}"
        same = f"to {fork.position}{gap}"
    return [
        prompt.id, prompt.category, *_figures(prompt.comparison, prompt.speedups), same,
        *([_number(peer_tps(prompt.peer), 1)] if with_peer else []),
    ]  # fmt: skip


def _figures(both: Comparison, speedups: Spread | None) -> list[str]:
    around = _NOTHING
    if speedups is not None:
        around = f"{speedups.low:.2f}..{speedups.high:.2f}"
    return [
        _number(both.plain.tps, 1), _number(both.spec.tps, 1), _number(both.speedup, 2), around,
        _number(both.spec.acceptance_rate, 2), _number(both.spec.tokens_per_round, 2),
    ]  # fmt: skip


def _categories(result: BenchResult) -> list[str]:
    if len(result.categories) < 2:
        return []
    head = ["category", "plain", "draft", "speed-up", "accepted", "per round"]
    rows = [
        [
            name, _number(one.plain.tps, 1), _number(one.spec.tps, 1), _number(one.speedup, 2),
            _number(one.spec.acceptance_rate, 2), _number(one.spec.tokens_per_round, 2),
        ]
        for name, one in result.categories.items()
    ]  # fmt: skip
    return _aligned([head, *rows])


def _controller(result: BenchResult) -> list[str]:
    """The controller's requests and results per prompt; [] if it never asked the drafter."""
    rows = []
    for prompt in result.prompts:
        runs = [pair.spec for pair in prompt.pairs]
        spec = prompt.comparison.spec
        counts = (
            spec.rounds, sum(run.asked for run in runs), sum(run.probes for run in runs),
            sum(run.proposed for run in runs), spec.drafted, spec.accepted,
        )  # fmt: skip
        expected = sum(run.expected for run in runs)
        rows.append([prompt.id, *map(str, counts), _number(expected, 1), state_of(runs)])
    if not any(run.asked for prompt in result.prompts for run in (p.spec for p in prompt.pairs)):
        return []
    head = ["drafts", "rounds", "asked", "retries", "proposed", "drafted", "accepted",
            "expected", "state"]  # fmt: skip
    return [
        *_aligned([head, *rows]),
        "asked: rounds that asked for a draft; retries: those of a disabled drafter;",
        "drafted: the proposed tokens that the target verified; expected: accepted",
        "tokens that the controller expected; state: disabled if it was in any repeat",
    ]


def _time(result: BenchResult) -> list[str]:
    """Milliseconds per token by part; the columns add up to the total."""
    both = result.comparison
    head = ["ms per token", "draft", "verify", "rest", "decode", "prompt, s in all", "processors"]
    rows = [
        [
            name, *(_number(_ms(seconds, totals), 2) for seconds in
                    (totals.draft_s, totals.verify_s, totals.rest_s, totals.decode_s)),
            _number(totals.prompt_s, 2),
            _number(ratio(totals.cpu_s, totals.prompt_s + totals.decode_s), 2),
        ]
        for name, totals in (("plain", both.plain), ("with draft", both.spec))
    ]  # fmt: skip
    return [
        *_aligned([head, *rows]),
        "processors: processor time of all threads over time by the clock",
        f"reading the prompts took {_number(both.prompt_cost, 3)} times as long with the draft",
    ]


def _transfers(result: BenchResult) -> list[str]:
    """The transfers of a round to and from devices; [] where all layers are on the CPU."""
    both = result.comparison
    if not any((*both.plain.transfers, *both.spec.transfers)):
        return []
    head = [
        "per round",
        "kB to devices",
        "kB to the host",
        "kB between",
        "copies",
        "waits",
        "graphs",
    ]
    rows = []
    for name, totals in (("plain", both.plain), ("with draft", both.spec)):
        transfers, n = totals.transfers, totals.rounds
        sizes = (transfers.bytes_to_device, transfers.bytes_to_host, transfers.bytes_between)
        copies = transfers.copies_to_device + transfers.copies_to_host + transfers.copies_between
        counts = (copies, transfers.synchronisations, transfers.graphs)
        rows.append([
            name, *(_number(ratio(size / 1e3, n), 2) for size in sizes),
            *(_number(ratio(count, n), 1) for count in counts),
        ])  # fmt: skip
    return _aligned([head, *rows])


def _ms(seconds: float, totals: Totals) -> float | None:
    return ratio(1e3 * seconds, totals.n_tokens)


def _acceptance(result: BenchResult) -> list[str]:
    runs = [pair.spec for pair in result.pairs]
    depths = acceptance_by_depth(runs)
    # Deeper ones were never reached.
    while depths and depths[-1].rate is None:
        depths = depths[:-1]
    if not depths:
        return []
    mark = " (SYNTHETIC)" if result.is_synthetic else ""
    histogram = accepted_histogram(runs)
    sources = sources_in_words(by_source(runs))
    return [
        *_aligned(
            [
                [f"depth of a drafted token{mark}", *(str(one.depth) for one in depths)],
                ["accepted, if those before it were", *(_number(d.rate, 2) for d in depths)],
                ["accepted, of all drafted", *(_number(d.rate_of_drafted, 2) for d in depths)],
            ]
        ),
        "rounds that accepted 0, 1, 2 ...: " + " ".join(str(n) for n in histogram),
        *([f"accepted of drafted tokens by source: {sources}"] if sources else []),
    ]


def _bandwidth(result: BenchResult) -> list[str]:
    setup, tps = result.setup, result.comparison.plain.tps
    streaming = setup.streaming
    if tps is None:
        return []
    reads = tps * setup.weight_bytes / 1e9
    line = f"plain decoding reads {setup.weight_bytes / 1e6:.1f} MB of weights per token: "
    line += f"{reads:.2f} GB/s"
    if streaming is None:
        return [line]
    ceiling = streaming.bytes_per_s / 1e9
    fits = (
        ["(they fit the cache: memory bandwidth is not the limit)"]
        if setup.weights_fit_cache
        else []
    )
    return [
        f"{line}, {100 * reads / ceiling:.0f}% of the {ceiling:.1f} GB/s that memory streams here",
        *fits,
        f"({streaming.method})",
    ]


def _number(value: float | None, digits: int) -> str:
    return _NOTHING if value is None else f"{value:.{digits}f}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned columns: the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
