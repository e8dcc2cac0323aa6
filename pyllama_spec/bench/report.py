"""A result as JSON and as a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from pyllama_spec.bench.figures import (
    Comparison,
    PromptResult,
    Spread,
    Totals,
    acceptance_by_depth,
    accepted_histogram,
    by_source,
    ratio,
    realised_gain,
)
from pyllama_spec.bench.peer import PeerRun
from pyllama_spec.bench.result import BenchResult
from pyllama_spec.bench.sides import Run
from pyllama_spec.speculative.stats import idle_in_words, since_in_words

FORMAT = "pyllama_spec bench 1"
# The share of an idle machine is 0.9 and more: threads that wait for each other poll.
BUSY = 0.75
# A note names so many prompts.
_MOST_NAMES = 6


def to_json(result: BenchResult) -> dict[str, Any]:
    """The object of `bench --json`: JSON's own types, seconds and tokens per second."""
    config, setup, both = result.config, result.setup, result.comparison
    spec_runs = [pair.spec for pair in result.pairs]
    return {
        "format": FORMAT,
        "synthetic": _synthetic(result),
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
        "crossings_per_round": {
            "plain": _transfers(both.plain), "spec": _transfers(both.spec),
        },
        "prompt_cost_ratio": both.prompt_cost,
        "by_source": by_source(spec_runs),
        "accepted_histogram": accepted_histogram(spec_runs),
        "acceptance_by_depth": [
            {**asdict(one), "rate": one.rate, "rate_of_drafted": one.rate_of_drafted}
            for one in acceptance_by_depth(spec_runs)
        ],
        "bandwidth": _bandwidth(result),
        "peer": _peer(result),
        "settings": {
            "target": setup.target, "drafter": setup.drafter, "n_tokens": config.n_tokens,
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


def _synthetic(result: BenchResult) -> dict[str, Any] | None:
    if not result.is_synthetic:
        return None
    return {
        "probabilities": list(result.config.synthetic_acceptance),
        "seed": result.config.seed,
        "rounds_off_script": result.n_off_script,
    }


def _comparison(both: Comparison) -> dict[str, Any]:
    return {
        "plain_tps": both.plain.tps,
        "spec_tps": both.spec.tps,
        "speedup": both.speedup,
        "acceptance_rate": both.spec.acceptance_rate,
        "tokens_per_round": both.spec.tokens_per_round,
        "plain_end_to_end_tps": both.plain.end_to_end_tps,
        "spec_end_to_end_tps": both.spec.end_to_end_tps,
        "end_to_end_speedup": both.end_to_end_speedup,
        "cpu_speedup": both.cpu_speedup,
        "n_texts": both.plain.n_texts,
        "n_tokens": both.plain.n_tokens,
        "rounds": both.spec.rounds,
        "rounds_without_draft": both.spec.rounds_without_draft,
        "drafted": both.spec.drafted,
        "accepted": both.spec.accepted,
    }


def _prompt(prompt: PromptResult) -> dict[str, Any]:
    runs = [pair.spec for pair in prompt.pairs]
    saved = realised_gain(runs).known
    return {
        "id": prompt.id,
        "category": prompt.category,
        **_comparison(prompt.comparison),
        "same_text": prompt.fork is None,
        "fork": None if prompt.fork is None else asdict(prompt.fork),
        "speedup_over_repeats": _spread(prompt.speedups),
        "prompt_tokens": prompt.n_prompt,
        "by_source": by_source(runs),
        "accepted_histogram": accepted_histogram(runs),
        "state": state_of(runs),
        "reason_off": next((run.reason_off for run in runs if run.reason_off), None),
        "asked": sum(run.asked for run in runs),
        "probes": sum(run.probes for run in runs),
        "proposed": sum(run.proposed for run in runs),
        "expected": round(sum(run.expected for run in runs), 3),
        "gain_expected": round(sum(run.gain_expected for run in runs), 3),
        "gain_realised": None if saved is None else round(saved, 3),
        "probe_s": round(sum(run.probe_s for run in runs), 6),
        # The first repeat's rounds: requested and drafted tokens.
        "turns": [list(turn) for turn in runs[0].round_counts] if runs else [],
        "peer": peer_sums(prompt.peer),
    }


def _spread(of: Spread | None) -> dict[str, float] | None:
    return None if of is None else {"median": of.median, "min": of.low, "max": of.high}


def _time(totals: Totals) -> dict[str, float]:
    return {
        "prompt_s": totals.prompt_s, "decode_s": totals.decode_s, "draft_s": totals.draft_s,
        "verify_s": totals.verify_s, "rest_s": totals.rest_s, "cpu_s": totals.cpu_s,
        "decode_cpu_s": totals.rounds_cpu_s,
    }  # fmt: skip


def _transfers(totals: Totals) -> dict[str, float] | None:
    """The transfers between the host and devices in a round; None without rounds."""
    if not totals.rounds:
        return None
    counts = totals.transfers._asdict()
    return {name: n / totals.rounds for name, n in counts.items()}


def _bandwidth(result: BenchResult) -> dict[str, Any]:
    """Bytes of weights that plain decoding reads per second, against the memory bandwidth."""
    setup, tps = result.setup, result.comparison.plain.tps
    reads = None if tps is None else tps * setup.weight_bytes
    streaming = setup.streaming
    return {
        "weight_bytes_per_token": setup.weight_bytes,
        "weight_bytes_basis": setup.weight_basis,
        "plain_bytes_per_s": reads,
        "streaming_bytes_per_s": streaming.bytes_per_s if streaming else None,
        "streaming_sum_bytes_per_s": streaming.sum_bytes_per_s if streaming else None,
        "streaming_copy_bytes_per_s": streaming.copy_bytes_per_s if streaming else None,
        "streaming_method": streaming.method if streaming else "not measured: weights on a GPU",
        "fraction_of_streaming": ratio(reads, streaming.bytes_per_s if streaming else None),
        "weights_fit_cache": setup.weights_fit_cache,
    }


def _peer(result: BenchResult) -> dict[str, Any] | None:
    if result.config.peer_name is None:
        return None
    answers = [answer for prompt in result.prompts for answer in prompt.peer]
    return {
        "url": result.config.peer,
        "beside": result.config.beside,
        "summary": peer_sums(answers),
        "failures": dict(result.peer_failures),
    }


def peer_sums(answers: Sequence[PeerRun]) -> dict[str, Any] | None:
    """The sums over a peer's answers; None without any."""
    if not answers:
        return None
    drafted = [answer.drafted for answer in answers if answer.drafted is not None]
    accepted = [answer.accepted for answer in answers if answer.accepted is not None]
    n_drafted = sum(drafted) if drafted else None
    n_accepted = sum(accepted) if accepted else None
    compared = [answer.is_same for answer in answers if answer.is_same is not None]
    cpu_s = [answer.cpu_s for answer in answers if answer.cpu_s is not None]
    return {
        "tps": peer_tps(answers),
        "n_texts": len(answers),
        "n_tokens": sum(answer.n_tokens for answer in answers),
        "seconds": sum(answer.seconds for answer in answers),
        "wall_s": sum(answer.wall_s for answer in answers),
        "cpu_s": sum(cpu_s) if len(cpu_s) == len(answers) else None,
        "same_text": sum(compared),
        "compared_texts": len(compared),
        "timed_by": "its own timings, prompt left out"
        if all(answer.is_own_timing for answer in answers)
        else "the clock, prompt included",
        "drafted": n_drafted,
        "accepted": n_accepted,
        "acceptance_rate": ratio(n_accepted, n_drafted),
    }


def peer_tps(answers: Iterable[PeerRun]) -> float | None:
    """Total tokens / total seconds; None without answers."""
    runs = list(answers)
    return ratio(sum(answer.n_tokens for answer in runs), sum(answer.seconds for answer in runs))


def state_of(runs: Sequence[Run]) -> str:
    """The drafter's state in a prompt's repeats: disabled, used, idle or none, by priority."""
    states = {run.state for run in runs}
    return next((one for one in ("disabled", "used", "idle") if one in states), "none")


def _states(result: BenchResult) -> list[str]:
    """The texts in which the drafter was idle or disabled, since which round, and why."""
    runs = [(prompt.id, pair.spec) for prompt in result.prompts for pair in prompt.pairs]
    out = []
    for reason in sorted({run.reason_off for _, run in runs if run.reason_off is not None}):
        those = [(name, run) for name, run in runs if run.reason_off == reason]
        since = since_in_words([run.disabled_since or 0 for _, run in those])
        out.append(f"the drafter was disabled in {_texts(those, len(runs))}, {since}: {reason}")
    idle: dict[tuple[bool, bool], list[tuple[str, Run]]] = {}
    for name, run in runs:
        if run.state == "idle":
            idle.setdefault((run.asked > 0, run.proposed > 0), []).append((name, run))
    for those in idle.values():
        asked = sum(run.asked for _, run in those)
        said = idle_in_words(asked, sum(run.proposed for _, run in those))
        out.append(f"the drafter was idle in {_texts(those, len(runs))}: {said}")
    alone = [(name, run) for name, run in runs if run.only_copies]
    if alone:
        out.append(
            f"the drafter gave only copies in {_texts(alone, len(runs))}: nothing of its model was "
            "accepted"
        )
    return out


def _texts(those: Sequence[tuple[str, Run]], n_all: int) -> str:
    """The number of texts and their prompts, as words."""
    names = list(dict.fromkeys(name for name, _ in those))
    named = ", ".join(names[:_MOST_NAMES])
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{len(those)} of {n_all} texts ({named}{more})"


def own_share(result: BenchResult) -> float | None:
    """Plain decoding's share of its threads' processor time: about 1.0 on an idle machine."""
    plain = result.comparison.plain
    share = ratio(plain.cpu_s, (plain.prompt_s + plain.decode_s) * result.setup.n_threads)
    return share or None


def is_busy(result: BenchResult) -> bool:
    """Whether other programs used so much processor time that times are unreliable."""
    share = own_share(result)
    return share is not None and share < BUSY


def notes(result: BenchResult) -> list[str]:
    """Remarks that a reader needs before the figures."""
    out = list(result.setup.notes)
    if result.is_synthetic:
        chances = ", ".join(f"{p:g}" for p in result.config.synthetic_acceptance)
        out.append(
            f"SYNTHETIC acceptance {chances} by depth, seed {result.config.seed}: speed only; "
            "nothing here is claimed of the draft's quality or of its text"
        )
    if result.n_off_script:
        out.append(
            f"{result.n_off_script} rounds were not synthetic: the text had left plain decoding's"
        )
    if result.config.repeats == 1:
        out.append("one repeat: what a single prompt shows may be the machine's doing")
    if is_busy(result):
        has_cpu = result.comparison.cpu_speedup is not None
        trust = (
            "see the speed-up by processor time" if has_cpu else "an idle machine may give others"
        )
        out.append(
            "the machine was busy: plain decoding's threads had a core for "
            f"{own_share(result):.0%} of the time; {trust}"
        )
    if result.is_interrupted:
        out.append("interrupted: only what was measured until then is counted")
    if result.failure is not None:
        out.append(f"ended by an error: {result.failure}")
    out += _states(result)
    out += [f"peer, prompt {key!r}: {reason}" for key, reason in result.peer_failures.items()]
    return out
