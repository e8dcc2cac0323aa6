"""Figures for Prometheus, under the names that vLLM and llama-server give them.

Two families, so that dashboards of either read them: `vllm:...` and `llamacpp:...`. Nothing of a
request's text is there, and no label but the kind of its end and a position in a draft.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
_WAITS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_PER_TOKEN = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class Metrics:
    """See the module's docstring.

    Args:
        gauges: name -> what gives its figure now.

    """

    def __init__(self, gauges: Mapping[str, tuple[str, Callable[[], float]]]) -> None:
        self._registry = registry = CollectorRegistry()
        registry.register(_Gauges(gauges))

        def counter(name: str, text: str, labels: Sequence[str] = ()) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: Sequence[float] = _WAITS) -> Histogram:
            return Histogram(name, text, registry=registry, buckets=buckets)

        self._prompt = [
            counter(f"{family}:prompt_tokens", "Tokens of prompts, those from memory too.")
            for family in ("vllm", "llamacpp")
        ]
        self._generated = [
            counter("vllm:generation_tokens", "Tokens of texts."),
            counter("llamacpp:tokens_predicted", "Tokens of texts."),
        ]
        self._prompt_s = counter("llamacpp:prompt_seconds", "Seconds of reading prompts.")
        self._decode_s = counter("llamacpp:tokens_predicted_seconds", "Seconds of rounds.")
        self._rounds = counter("llamacpp:n_decode", "Rounds: decodes of the target behind prompts.")
        self._queries = counter("vllm:prefix_cache_queries", "Tokens of prompts that were sought.")
        self._hits = counter("vllm:prefix_cache_hits", "Those that were in memory.")
        self._drafts = counter("vllm:spec_decode_num_drafts", "Rounds that verified a draft.")
        self._drafted = counter("vllm:spec_decode_num_draft_tokens", "Drafted tokens.")
        self._accepted = counter("vllm:spec_decode_num_accepted_tokens", "Accepted ones.")
        self._by_position = counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Accepted tokens by their place in a draft, from 0.", ("position",),
        )  # fmt: skip
        self._ended = counter(
            "vllm:request_success", "Requests that came to an end, by what it was.",
            ("finished_reason",),
        )  # fmt: skip
        self._failed = counter(
            "pyllama_spec:request_errors", "Requests that were answered with an error.", ("code",)
        )
        self._first_s = histogram("vllm:time_to_first_token_seconds", "From call to first token.")
        self._queue_s = histogram("vllm:request_queue_time_seconds", "From call to first work.")
        self._whole_s = histogram("vllm:e2e_request_latency_seconds", "From call to end.")
        self._token_s = histogram(
            "vllm:time_per_output_token_seconds", "Seconds of a token behind the first.", _PER_TOKEN
        )

    def note_end(self, parts: Sequence[Mapping[str, Any]], usage: Mapping[str, Any]) -> None:
        """A request was answered.

        Args:
            parts: what of its answer has `choices`, `speculation` and `timing`.
            usage: of all of it.

        """
        for part in parts:
            for choice in part["choices"]:
                self._ended.labels(choice["finish_reason"] or "stop").inc()
            self._note_rounds(part["speculation"])
            self._note_timing(part["timing"])
        self._note_tokens(usage["prompt_tokens"], usage["completion_tokens"])
        cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
        self._queries.inc(usage["prompt_tokens"])
        self._hits.inc(cached)

    def note_aborted(self, n_prompt: int, n_generated: int) -> None:
        """A request ended before its time, with so many tokens computed."""
        self._ended.labels("abort").inc()
        self._note_tokens(n_prompt, n_generated)

    def note_error(self, code: str) -> None:
        """A request was answered with an error."""
        self._failed.labels(code).inc()

    def note_seconds(self, seconds: float) -> None:
        """From a request's call to its end."""
        self._whole_s.observe(seconds)

    def _note_tokens(self, n_prompt: int, n_generated: int) -> None:
        for one in self._prompt:
            one.inc(n_prompt)
        for one in self._generated:
            one.inc(n_generated)

    def _note_rounds(self, speculation: Mapping[str, Any]) -> None:
        self._rounds.inc(speculation["rounds"])
        self._drafted.inc(speculation["drafted"])
        self._accepted.inc(speculation["accepted"])
        self._drafts.inc(sum(speculation["verified_histogram"][1:]))
        n_rounds = speculation["accepted_histogram"]
        for position in range(len(n_rounds) - 1):
            n = sum(n_rounds[position + 1 :])
            if n:
                self._by_position.labels(str(position)).inc(n)

    def _note_timing(self, timing: Mapping[str, Any]) -> None:
        if first_s := timing.get("first_token_s"):
            self._first_s.observe(first_s)
        if (queue_s := timing.get("queue_s")) is not None:
            self._queue_s.observe(queue_s)
        if tps := timing.get("decode_tps"):
            self._token_s.observe(1 / tps)
        self._prompt_s.inc(timing.get("prompt_s", 0.0))
        self._decode_s.inc(timing.get("decode_s", 0.0))

    def text(self) -> bytes:
        """All figures, as Prometheus reads them."""
        return generate_latest(self._registry)


class _Gauges(Collector):
    """Figures that are looked up when they are asked for."""

    def __init__(self, gauges: Mapping[str, tuple[str, Callable[[], float]]]) -> None:
        self._gauges = dict(gauges)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for name, (text, read) in self._gauges.items():
            yield GaugeMetricFamily(name, text, value=read())
