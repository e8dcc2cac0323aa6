"""Prometheus metrics under the names of vLLM and llama-server.

Two families, for dashboards of either: `vllm:...` and `llamacpp:...`. They contain nothing of a
request's text, and no label but the model, the kind of an end and a position in a draft.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_WAITS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_PER_TOKEN = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_DRAFT = "spec_decode_num_"
# The counters by their names: their texts, and their labels beside the model.
_COUNTERS: Mapping[str, tuple[str, ...]] = {
    "vllm:prompt_tokens": ("Tokens of prompts, computed or in memory.",),
    "vllm:prefix_cache_queries": ("Prompt tokens looked up in memory.",),
    "llamacpp:prompt_tokens": ("Tokens of prompts that were computed.",),
    "llamacpp:prompt_tokens_cached": ("Prompt tokens from memory.",),
    "vllm:prefix_cache_hits": ("Tokens of prompts that were in memory.",),
    "vllm:generation_tokens": ("Tokens of texts.",),
    "llamacpp:tokens_predicted": ("Tokens of texts.",),
    "llamacpp:prompt_seconds": ("Seconds spent on prompts.",),
    "llamacpp:tokens_predicted_seconds": ("Seconds spent on texts.",),
    "pyllama_spec:rounds": ("Rounds of texts: a decode of n texts is n rounds.",),
    **{
        f"{family}:{_DRAFT}{name}": text
        for family in ("vllm", "llamacpp")
        for name, text in {
            "drafts": ("Rounds with a draft.",),
            "draft_tokens": ("Drafted tokens.",),
            "accepted_tokens": ("Accepted drafted tokens.",),
            "accepted_tokens_per_pos": (
                "Accepted tokens by their place in a draft, from 0.", "position",
            ),
        }.items()
    },
    "vllm:request_success": ("Texts by how they ended.", "finished_reason"),
    "pyllama_spec:requests_by_draft_state": (
        "Texts by the state of their draft: used, idle, disabled or none.", "state",
    ),
    "pyllama_spec:request_errors": ("Requests that were answered with an error.", "code"),
}  # fmt: skip
_HISTOGRAMS: Mapping[str, tuple[str, Sequence[float]]] = {
    "vllm:time_to_first_token_seconds": ("Seconds to the first token.", _WAITS),
    "vllm:request_queue_time_seconds": ("Seconds before computation.", _WAITS),
    "vllm:e2e_request_latency_seconds": ("Seconds of whole requests.", _WAITS),
    "vllm:time_per_output_token_seconds": ("Seconds per token after the first.", _PER_TOKEN),
}  # fmt: skip


class Metrics:
    """All metrics of a server; of() gives those of one model."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._counters = {
            name: Counter(name, text, ("model", *labels), registry=registry)
            for name, (text, *labels) in _COUNTERS.items()
        }
        self._histograms = {
            name: Histogram(name, text, ("model",), registry=registry, buckets=buckets)
            for name, (text, buckets) in _HISTOGRAMS.items()
        }
        # Gauges, since a draft may lose time.
        self.saved = {
            "saved_s": self.gauge("pyllama_spec:saved_seconds", "Seconds that drafts saved."),
            "saved_error_s": self.gauge("pyllama_spec:saved_error_seconds", "Their error."),
        }
        self._by_model: dict[str, ModelMetrics] = {}

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        """A new gauge, with the model as its first label."""
        return Gauge(name, text, ("model", *labels), registry=self._registry)

    def add(self, name: str, n: float, *labels: str) -> None:
        """Adds to a counter; the first label is the model, "" for none."""
        self._counters[name].labels(*labels).inc(n)

    def observe(self, name: str, seconds: float, model: str) -> None:
        """Adds seconds to a histogram."""
        self._histograms[name].labels(model).observe(seconds)

    def of(self, model: str) -> ModelMetrics:
        """The metrics of one model."""
        if model not in self._by_model:
            self._by_model[model] = ModelMetrics(self, model)
        return self._by_model[model]

    def prepare(self, model: str) -> None:
        """Gives a model its figures without further labels, 0 so far."""
        for name, (_, *labels) in _COUNTERS.items():
            if not labels:
                self._counters[name].labels(model)
        for one in (*self.saved.values(), *self._histograms.values()):
            one.labels(model)

    def text(self) -> bytes:
        """All metrics in Prometheus's text format."""
        return generate_latest(self._registry)


class ModelMetrics:
    """The metrics of one model's requests."""

    def __init__(self, metrics: Metrics, model: str) -> None:
        self._metrics, self._model = metrics, model
        metrics.prepare(model)
        self._n_read = self._n_written = 0
        self._prompt_s = self._decode_s = 0.0

    def _add(self, n: float, *names: str) -> None:
        for name in names:
            self._metrics.add(name, n, self._model)

    def note_end(self, parts: Sequence[Mapping[str, Any]], usage: Mapping[str, Any]) -> None:
        """Counts an answered request."""
        n_prompt, n_generated = usage["prompt_tokens"], usage["completion_tokens"]
        n_texts = 0
        for part in parts:
            for choice in part["choices"]:
                reason = choice["finish_reason"] or "stop"
                self._metrics.add("vllm:request_success", 1, self._model, reason)
                n_texts += 1
            self._note_rounds(part["speculation"])
            self._note_timing(part["timing"])
        cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
        self._note_tokens(n_prompt, cached, n_generated)
        # The first token of a text comes with its prompt.
        self._n_read += n_prompt - cached
        self._n_written += max(n_generated - n_texts, 0)

    def note_left(self) -> None:
        """Counts a request whose client left; its tokens do not count."""
        self._metrics.add("vllm:request_success", 1, self._model, "abort")

    def note_seconds(self, seconds: float) -> None:
        """Records the seconds from a request's call to its end."""
        self._metrics.observe("vllm:e2e_request_latency_seconds", seconds, self._model)

    def note_vectors(self, n_tokens: int) -> None:
        """Counts embedded texts."""
        self._note_tokens(n_tokens, 0, 0)

    @property
    def prompt_tps(self) -> float:
        """The computed tokens of prompts per second."""
        return self._n_read / self._prompt_s if self._prompt_s else 0.0

    @property
    def text_tps(self) -> float:
        """The tokens of texts per second, without the first of each."""
        return self._n_written / self._decode_s if self._decode_s else 0.0

    def _note_tokens(self, n_prompt: int, n_cached: int, n_generated: int) -> None:
        self._add(n_prompt, "vllm:prompt_tokens", "vllm:prefix_cache_queries")
        self._add(n_cached, "llamacpp:prompt_tokens_cached", "vllm:prefix_cache_hits")
        self._add(n_prompt - n_cached, "llamacpp:prompt_tokens")
        self._add(n_generated, "vllm:generation_tokens", "llamacpp:tokens_predicted")

    def _note_rounds(self, speculation: Mapping[str, Any]) -> None:
        state, by_accepted = speculation["state"], speculation["accepted_histogram"]
        self._metrics.add("pyllama_spec:requests_by_draft_state", 1, self._model, state)
        self._add(speculation["rounds"], "pyllama_spec:rounds")
        for name in ("saved_s", "saved_error_s"):
            self._metrics.saved[name].labels(self._model).inc(speculation[name] or 0.0)
        n_drafts = sum(one["rounds"] for one in speculation["by_source"].values())
        for family in (f"vllm:{_DRAFT}", f"llamacpp:{_DRAFT}"):
            self._add(speculation["drafted"], f"{family}draft_tokens")
            self._add(speculation["accepted"], f"{family}accepted_tokens")
            self._add(n_drafts, f"{family}drafts")
            for position in range(len(by_accepted) - 1):
                if n := sum(by_accepted[position + 1 :]):
                    name = f"{family}accepted_tokens_per_pos"
                    self._metrics.add(name, n, self._model, str(position))

    def _note_timing(self, timing: Mapping[str, Any]) -> None:
        observe, model = self._metrics.observe, self._model
        if first_s := timing.get("first_token_s"):
            observe("vllm:time_to_first_token_seconds", first_s, model)
        if (queue_s := timing.get("queue_s")) is not None:
            observe("vllm:request_queue_time_seconds", queue_s, model)
        if tps := timing.get("decode_tps"):
            observe("vllm:time_per_output_token_seconds", 1 / tps, model)
        prompt_s, decode_s = timing.get("prompt_s", 0.0), timing.get("decode_s", 0.0)
        self._add(prompt_s, "llamacpp:prompt_seconds")
        self._add(decode_s, "llamacpp:tokens_predicted_seconds")
        self._prompt_s += prompt_s
        self._decode_s += decode_s
