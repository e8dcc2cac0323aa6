"""A result as JSON, and that object as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pyllama_spec.bench.figures import (
    BenchResult,
    Comparison,
    PromptResult,
    Spread,
    Totals,
    acceptance_by_depth,
    ratio,
)
from pyllama_spec.speculative.stats import (
    sources_as_dict,
    sources_in_words,
)

FORMAT = "pyllama_spec bench 1"
# A note names so many prompts.
_MOST_NAMES = 6
_NOTHING = "-"


def to_json(result: BenchResult) -> dict[str, Any]:
    """The object of `bench --json`: JSON's own types, seconds and tokens per second."""
    config, setup, both = result.config, result.setup, result.comparison
    return {
        "format": FORMAT,
        "interrupted": result.is_interrupted,
        "failure": result.failure,
        "prompts": [_prompt(prompt) for prompt in result.prompts],
        "summary": {
            **_comparison(both),
            "speedup_over_repeats": _spread(result.speedups),
            "same_text": all(pair.is_same for pair in result.pairs),
        },
        "categories": {name: _comparison(one) for name, one in result.categories.items()},
        "time": {"plain": _time(both.plain), "spec": _time(both.spec)},
        "by_source": sources_as_dict(both.spec.stats.by_source),
        "accepted_histogram": both.spec.stats.accepted_histogram,
        "acceptance_by_depth": [
            {**asdict(one), "rate": one.rate, "rate_of_drafted": one.rate_of_drafted}
            for one in acceptance_by_depth(pair.spec for pair in result.pairs)
        ],
        "settings": {
            "target": setup.target, "drafter": setup.drafter, "draft": setup.draft,
            "n_tokens": config.n_tokens,
            "repeats": config.repeats, "n_draft": setup.max_draft, "p_min": config.p_min,
            "lookup": config.lookup, "chat": config.chat, "temperature": config.temperature,
            "seed": config.seed, "n_ctx": setup.n_ctx, "n_threads": setup.n_threads,
            "n_gpu_layers": config.n_gpu_layers, "placement": setup.placement,
            "draft_placement": setup.draft_placement, "offload_kqv": config.offload_kqv,
            "flash_attn": config.flash_attn, "op_offload": config.op_offload,
        },
        **setup.provenance,
        **result.span,
        "notes": notes(result),
        **({"others": [to_json(one) for one in result.others]} if result.others else {}),
    }  # fmt: skip


def _comparison(both: Comparison) -> dict[str, Any]:
    counts = both.spec.stats
    return {
        "plain_tps": both.plain.tps,
        "spec_tps": both.spec.tps,
        "speedup": both.speedup,
        "acceptance_rate": counts.acceptance_rate,
        "tokens_per_round": counts.tokens_per_round,
        "plain_end_to_end_tps": both.plain.end_to_end_tps,
        "spec_end_to_end_tps": both.spec.end_to_end_tps,
        "end_to_end_speedup": both.end_to_end_speedup,
        "cpu_speedup": both.cpu_speedup,
        "n_texts": both.plain.n_texts,
        "n_tokens": both.plain.n_tokens,
        "rounds": counts.rounds,
        "drafted": counts.drafted,
        "accepted": counts.accepted,
    }


def _prompt(prompt: PromptResult) -> dict[str, Any]:
    runs = [pair.spec.stats for pair in prompt.pairs]
    both = prompt.comparison
    counts, states = both.spec.stats, {run.state for run in runs}
    return {
        "id": prompt.id,
        "category": prompt.category,
        **_comparison(both),
        "same_text": prompt.fork is None,
        "fork": prompt.fork,
        "speedup_over_repeats": _spread(prompt.speedups),
        "prompt_tokens": prompt.n_prompt,
        "by_source": sources_as_dict(counts.by_source),
        "accepted_histogram": counts.accepted_histogram,
        # Over the repeats: disabled in any, else used in any, and so on.
        "state": next((one for one in ("disabled", "used", "idle") if one in states), "none"),
        "reason_off": next((one.reason_off for one in runs if one.state == "disabled"), None),
    }


def _spread(of: Spread | None) -> dict[str, Any] | None:
    return None if of is None else asdict(of)


def _time(totals: Totals) -> dict[str, float]:
    timing = totals.timing
    return {
        "prompt_s": timing.prompt_s, "decode_s": timing.decode_s, "draft_s": timing.draft_s,
        "verify_s": timing.verify_s, "rest_s": timing.overhead_s, "cpu_s": totals.cpu_s,
        "decode_cpu_s": totals.rounds_cpu_s,
    }  # fmt: skip


# ---- remarks


def notes(result: BenchResult) -> list[str]:
    """Remarks that a reader needs before the figures."""
    out = list(result.setup.notes)
    if result.config.repeats == 1:
        out.append("one repeat: what a single prompt shows may be the machine's doing")
    if result.is_interrupted:
        out.append("interrupted: only what was measured until then is counted")
    if result.failure is not None:
        out.append(f"ended by an error: {result.failure}")
    return out + _states(result)


def _states(result: BenchResult) -> list[str]:
    """The texts in which the drafter was idle or disabled, and why."""
    runs = [(prompt.id, pair.spec.stats) for prompt in result.prompts for pair in prompt.pairs]
    by_words: dict[tuple[str, str], list[str]] = {}
    for name, one in runs:
        if one.state == "disabled":
            by_words.setdefault(("was disabled", one.reason_off or ""), []).append(name)
        elif one.state == "idle":
            what = "was not asked" if not one.asked else "proposed nothing that was verified"
            by_words.setdefault(("was idle", what), []).append(name)
    out = []
    for (what, why), those in by_words.items():
        names = list(dict.fromkeys(those))
        named = ", ".join(names[:_MOST_NAMES]) + ", ..." * (len(names) > _MOST_NAMES)
        out.append(f"the drafter {what} in {len(those)} of {len(runs)} texts ({named}): {why}")
    return out


# ---- tables

_Figures = Mapping[str, Any]


def table(result: BenchResult) -> str:
    """The figures of to_json() as text: prompts, totals, times, acceptance."""
    runs = to_json(result)
    runs_of = [runs, *runs.get("others", ())]
    parts = [_one_table(one) for one in runs_of]
    if len(parts) > 1:
        parts.append("\n".join(_compared(runs_of)))
    return "\n\n\n".join(parts)


def _one_table(run: _Figures) -> str:
    blocks = (_head, _prompts, _categories, _times, _acceptance)
    return "\n\n".join("\n".join(lines) for block in blocks if (lines := block(run)))


def _compared(runs: Sequence[_Figures]) -> list[str]:
    """A line for each of several drafts."""
    head = ["drafts, beside the same plain texts", "speed-up", "(min .. max)", "end to end",
            "accepted", "per round", "draft", "verify", "same text",
            "by processor time"]  # fmt: skip
    rows = [
        [
            run["settings"]["draft"], _number(run["summary"]["speedup"]),
            f"({_around(run['summary'], ' .. ')})",
            _number(run["summary"]["end_to_end_speedup"]),
            _number(run["summary"]["acceptance_rate"]),
            _number(run["summary"]["tokens_per_round"]),
            *(_number(_ms(run, "spec", part)) for part in ("draft_s", "verify_s")),
            _n_same(run), _number(run["summary"]["cpu_speedup"]),
        ]
        for run in runs
    ]  # fmt: skip
    return [*_aligned([head, *rows]), "draft and verify in ms per token"]


def _n_same(run: _Figures) -> str:
    return f"{sum(one['same_text'] for one in run['prompts'])} of {len(run['prompts'])}"


def _head(run: _Figures) -> list[str]:
    said = run["settings"]
    names = " + ".join(str(file["name"]) for file in run["files"].values())
    how = "greedy" if said["temperature"] == 0 else f"temperature {said['temperature']:g}"
    loads = (run.get(f"load_average_{when}") for when in ("start", "end"))
    load = " and ".join(_number(one[0] if one else None) for one in loads)
    n = f"{len(run['prompts'])} prompts x {said['repeats']} repeats"
    drafter = said["drafter"] + " (chosen by auto)" * said["draft"].startswith("auto: ")
    return [
        *(f"NOTE: {note}" for note in run["notes"]),
        f"{names} ({said['target']}), drafter {drafter}, at most {said['n_draft']} per round",
        f"{n} of {said['n_tokens']} tokens, {how}",
        f"{said['n_threads']} threads; load average {load} at start and end",
    ]


def _prompts(run: _Figures) -> list[str]:
    """The table of prompts with its total."""
    head = ["prompt", "category", "plain", "draft", "speed-up", "min..max", "accepted", "a round",
            "same"]  # fmt: skip
    rows = [[one["id"], one["category"], *_speeds(one), _same(one)] for one in run["prompts"]]
    rows.append(["all", "", *_speeds(run["summary"]), _n_same(run)])
    return [
        "tokens per second of decoding; total tokens / total seconds; same: the same text",
        *_aligned([head, *rows]),
        "with the prompts, end to end: speed-up " + _number(run["summary"]["end_to_end_speedup"]),
        "by processor time of the decoding: speed-up " + _number(run["summary"]["cpu_speedup"]),
    ]


def _same(prompt: _Figures) -> str:
    return "yes" if prompt["fork"] is None else f"to {prompt['fork']}"


def _speeds(one: _Figures) -> list[str]:
    return [
        _number(one["plain_tps"], 1), _number(one["spec_tps"], 1), _number(one["speedup"]),
        _around(one, ".."), _number(one["acceptance_rate"]), _number(one["tokens_per_round"]),
    ]  # fmt: skip


def _around(one: _Figures, between: str) -> str:
    of = one["speedup_over_repeats"]
    return _NOTHING if of is None else f"{of['min']:.2f}{between}{of['max']:.2f}"


def _categories(run: _Figures) -> list[str]:
    if len(run["categories"]) < 2:
        return []
    head = ["category", "plain", "draft", "speed-up", "accepted", "per round"]
    rows = [
        [
            name, _number(one["plain_tps"], 1), _number(one["spec_tps"], 1),
            *(_number(one[key]) for key in ("speedup", "acceptance_rate", "tokens_per_round")),
        ]
        for name, one in run["categories"].items()
    ]  # fmt: skip
    return _aligned([head, *rows])


def _times(run: _Figures) -> list[str]:
    """Milliseconds per token by part; the columns add up to the total."""
    head = ["ms per token", "draft", "verify", "rest", "decode", "prompt, s in all"]
    rows = []
    for side, name in (("plain", "plain"), ("spec", "with draft")):
        time = run["time"][side]
        parts = (_ms(run, side, f"{one}_s") for one in ("draft", "verify", "rest", "decode"))
        rows.append([name, *map(_number, parts), _number(time["prompt_s"])])
    return _aligned([head, *rows])


def _ms(run: _Figures, side: str, part: str) -> float | None:
    """Milliseconds per token of the rounds."""
    time, tps = run["time"][side], run["summary"][f"{side}_tps"]
    return ratio(1e3 * time[part], time["decode_s"] * tps if tps else None)


def _acceptance(run: _Figures) -> list[str]:
    depths = [one for one in run["acceptance_by_depth"] if one["rate"] is not None]
    if not depths:
        return []
    sources = sources_in_words(run["by_source"])
    rows = [
        ["depth of a drafted token", *(str(one["depth"]) for one in depths)],
        ["accepted, if those before it were", *(_number(one["rate"]) for one in depths)],
        ["accepted, of all drafted", *(_number(one["rate_of_drafted"]) for one in depths)],
    ]
    return [
        *_aligned(rows),
        "rounds that accepted 0, 1, 2 ...: " + " ".join(map(str, run["accepted_histogram"])),
        *([f"accepted of drafted tokens by source: {sources}"] if sources else []),
    ]


def _number(value: float | None, digits: int = 2) -> str:
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
