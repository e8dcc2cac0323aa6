"""Gauges of a server's models: what runs and waits, and what a loaded model takes and computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyllama_spec.server.metrics import Metrics
from pyllama_spec.server.served_model import STATES, ServedModel
from pyllama_spec.server.service import Service

_Figures = list[tuple[tuple[str], float]]
_RUNNING = "Requests that are computed."
_WAITING = "Requests that wait in the queue or for a load."
_SINCE = "per second, of requests that ended since the last scrape."


def add_gauges(metrics: Metrics, models: Sequence[ServedModel]) -> None:
    """Adds the gauges of some models; a model that is not loaded has 0.

    Args:
        metrics: of the server.
        models: each of its models.

    """

    def of_services(count: Callable[[Service], float]) -> Callable[[], _Figures]:
        return lambda: [((m.name,), count(m.service) if m.service else 0) for m in models]

    in_line, running = of_services(Service.n_waiting), of_services(Service.n_running)

    def waiting() -> _Figures:
        return [(k, n + m.n_waiting) for (k, n), m in zip(in_line(), models, strict=True)]

    metrics.add_gauges(("model",), {
        "vllm:num_requests_running": (_RUNNING, running),
        "llamacpp:requests_processing": (_RUNNING, running),
        "vllm:num_requests_waiting": (_WAITING, waiting),
        "llamacpp:requests_deferred": (_WAITING, waiting),
        "llamacpp:n_busy_slots_per_decode": (
            "The average number of sequences in a decode.",
            of_services(lambda service: service.metrics.sequences_per_decode),
        ),
        "llamacpp:n_tokens_max": (
            "The most tokens that a sequence has had.",
            of_services(lambda service: service.metrics.max_tokens),
        ),
        "llamacpp:prompt_tokens_seconds": (
            f"Computed tokens of prompts {_SINCE}",
            of_services(lambda service: service.metrics.prompt_pace.read()),
        ),
        "llamacpp:predicted_tokens_seconds": (
            f"Generated tokens {_SINCE}",
            of_services(lambda service: service.metrics.text_pace.read()),
        ),
        "pyllama_spec:model_memory_bytes": (
            "Bytes of memory that a loaded model takes.",
            lambda: [((m.name,), m.n_bytes if m.service else 0) for m in models],
        ),
    })  # fmt: skip
    metrics.add_gauges(("model", "state"), {
        "pyllama_spec:model_state": (
            "1 for the state of a model, 0 for its other states.",
            lambda: [((m.name, s), float(m.state == s)) for m in models for s in STATES],
        ),
    })  # fmt: skip
