"""Prometheus metrics under the names of vLLM and llama-server.

Two families, for dashboards of either: `vllm:...` and `llamacpp:...`. They contain nothing of a
request's text, and no label but the model, the kind of an end and a position in a draft.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_WAITS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_PER_TOKEN = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class Metrics:
    """All metrics of a server; of() gives those of one model."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        self._by_model: dict[str, ModelMetrics] = {}

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        """A new gauge, with the model as its first label."""
        return Gauge(name, text, ("model", *labels), registry=self._registry)

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        """The counter of a name, with the model as its first label."""
        if name not in self._counters:
            self._counters[name] = Counter(name, text, ("model", *labels), registry=self._registry)
        return self._counters[name]

    def histogram(self, name: str, text: str, buckets: Sequence[float] = _WAITS) -> Histogram:
        """The histogram of a name, with the model as its label."""
        if name not in self._histograms:
            self._histograms[name] = Histogram(
                name, text, ("model",), registry=self._registry, buckets=buckets
            )
        return self._histograms[name]

    def note_error(self, model: str, code: str) -> None:
        """Counts an error response, to a model or "" for none."""
        text = "Requests that were answered with an error."
        self.counter("pyllama_spec:request_errors", text, "code").labels(model, code).inc()

    def of(self, model: str) -> ModelMetrics:
        """The metrics of one model."""
        if model not in self._by_model:
            self._by_model[model] = ModelMetrics(self, model)
        return self._by_model[model]

    def text(self) -> bytes:
        """All metrics in Prometheus's text format."""
        return generate_latest(self._registry)


@dataclass(slots=True)
class Pace:
    """Tokens and seconds of the requests that ended since the last read()."""

    n_tokens: int = 0
    seconds: float = 0.0

    def read(self) -> float:
        """The tokens per second, 0 where none ended; begins anew."""
        tps = self.n_tokens / self.seconds if self.seconds else 0.0
        self.n_tokens, self.seconds = 0, 0.0
        return tps


class ModelMetrics:
    """The metrics of one model's requests."""

    def __init__(self, metrics: Metrics, model: str) -> None:
        self._model = model

        def counter(name: str, text: str) -> Counter:
            return metrics.counter(name, text).labels(model)

        def histogram(name: str, text: str, buckets: Sequence[float] = _WAITS) -> Histogram:
            return metrics.histogram(name, text, buckets).labels(model)

        def counters(name: str, text: str) -> tuple[Counter, ...]:
            return tuple(counter(f"{family}:{name}", text) for family in ("vllm", "llamacpp"))

        self._prompt = counter("vllm:prompt_tokens", "Tokens of prompts, computed or in memory.")
        self._read = counter("llamacpp:prompt_tokens", "Tokens of prompts that were computed.")
        self._cached = counter("llamacpp:prompt_tokens_cached", "Prompt tokens from memory.")
        self._generated = [
            counter("vllm:generation_tokens", "Tokens of texts."),
            counter("llamacpp:tokens_predicted", "Tokens of texts."),
        ]
        self._prompt_s = counter("llamacpp:prompt_seconds", "Seconds spent on prompts.")
        self._decode_s = counter("llamacpp:tokens_predicted_seconds", "Seconds spent on texts.")
        self._decodes = counter("llamacpp:n_decode", "Decodes of the target, each of a batch.")
        self._rounds = counter(
            "pyllama_spec:rounds", "Rounds of texts: a decode of n texts is n rounds."
        )
        self._queries = counter("vllm:prefix_cache_queries", "Prompt tokens looked up in memory.")
        self._hits = counter("vllm:prefix_cache_hits", "Tokens of prompts that were in memory.")
        self._drafts = counters("spec_decode_num_drafts", "Rounds that verified a draft.")
        self._drafted = counters("spec_decode_num_draft_tokens", "Drafted tokens.")
        self._accepted = counters("spec_decode_num_accepted_tokens", "Accepted drafted tokens.")
        self._by_position = tuple(
            metrics.counter(
                f"{family}:spec_decode_num_accepted_tokens_per_pos",
                "Accepted tokens by their place in a draft, from 0.", "position",
            )
            for family in ("vllm", "llamacpp")
        )  # fmt: skip
        self._ended = metrics.counter(
            "vllm:request_success", "Texts by how they ended.", "finished_reason",
        )  # fmt: skip
        self._by_state = metrics.counter(
            "pyllama_spec:requests_by_draft_state",
            "Texts by the state of their draft: used, idle, disabled or none.", "state",
        )  # fmt: skip
        self._first_s = histogram("vllm:time_to_first_token_seconds", "Seconds to the first token.")
        self._queue_s = histogram("vllm:request_queue_time_seconds", "Seconds before computation.")
        self._whole_s = histogram("vllm:e2e_request_latency_seconds", "Seconds of whole requests.")
        self._token_s = histogram(
            "vllm:time_per_output_token_seconds", "Seconds per token after the first.", _PER_TOKEN
        )
        self.prompt_pace, self.text_pace = Pace(), Pace()
        self._n_decodes = self._n_sequences = self.max_tokens = 0

    def note_end(self, parts: Sequence[Mapping[str, Any]], usage: Mapping[str, Any]) -> None:
        """Counts an answered request."""
        n_prompt, n_generated = usage["prompt_tokens"], usage["completion_tokens"]
        n_texts = 0
        for part in parts:
            for choice in part["choices"]:
                self._ended.labels(self._model, choice["finish_reason"] or "stop").inc()
                n_texts += 1
            self._note_rounds(part["speculation"])
            self._note_timing(part["timing"])
        cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
        self._note_tokens(n_prompt, cached, n_generated)
        # The first token of a text comes with its prompt.
        self.prompt_pace.n_tokens += n_prompt - cached
        self.text_pace.n_tokens += max(n_generated - n_texts, 0)

    def note_cut(
        self,
        n_prompt: int,
        n_cached: int,
        n_generated: int,
        speculations: Sequence[Mapping[str, Any]],
        *,
        has_left: bool,
    ) -> None:
        """Counts a cancelled request, not one that gets an error; its tokens count as usual."""
        if has_left:
            self._ended.labels(self._model, "abort").inc()
        for speculation in speculations:
            self._note_rounds(speculation)
        self._note_tokens(n_prompt, n_cached, n_generated)

    def note_seconds(self, seconds: float) -> None:
        """Records the seconds from a request's call to its end."""
        self._whole_s.observe(seconds)

    def note_decodes(self, n_decodes: int, n_sequences: int, max_tokens: int) -> None:
        """Counts further decodes."""
        self._decodes.inc(n_decodes)
        self._n_decodes += n_decodes
        self._n_sequences += n_sequences
        self.max_tokens = max(self.max_tokens, max_tokens)

    @property
    def sequences_per_decode(self) -> float:
        """The average number of sequences in a decode; 0 before the first one."""
        return self._n_sequences / max(self._n_decodes, 1)

    def _note_tokens(self, n_prompt: int, n_cached: int, n_generated: int) -> None:
        for one in (self._prompt, self._queries):
            one.inc(n_prompt)
        for one in (self._cached, self._hits):
            one.inc(n_cached)
        self._read.inc(n_prompt - n_cached)
        for one in self._generated:
            one.inc(n_generated)

    def _note_rounds(self, speculation: Mapping[str, Any]) -> None:
        self._by_state.labels(self._model, speculation["state"]).inc()
        self._rounds.inc(speculation["rounds"])
        for counters, n in (
            (self._drafted, speculation["drafted"]),
            (self._accepted, speculation["accepted"]),
            (self._drafts, sum(speculation["verified_histogram"][1:])),
        ):
            for one in counters:
                one.inc(n)
        n_rounds = speculation["accepted_histogram"]
        for position in range(len(n_rounds) - 1):
            n = sum(n_rounds[position + 1 :])
            for by_position in self._by_position if n else ():
                by_position.labels(self._model, str(position)).inc(n)

    def _note_timing(self, timing: Mapping[str, Any]) -> None:
        if first_s := timing.get("first_token_s"):
            self._first_s.observe(first_s)
        if (queue_s := timing.get("queue_s")) is not None:
            self._queue_s.observe(queue_s)
        if tps := timing.get("decode_tps"):
            self._token_s.observe(1 / tps)
        prompt_s, decode_s = timing.get("prompt_s", 0.0), timing.get("decode_s", 0.0)
        self._prompt_s.inc(prompt_s)
        self._decode_s.inc(decode_s)
        self.prompt_pace.seconds += prompt_s
        self.text_pace.seconds += decode_s
