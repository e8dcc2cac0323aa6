"""The result of a benchmark."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pyllama_spec.bench.config import BenchConfig
from pyllama_spec.bench.figures import Comparison, Pair, PromptResult, Spread, repeats_of, spread
from pyllama_spec.bench.figures import compare as compare_pairs
from pyllama_spec.bench.machine import Streaming


@dataclass(frozen=True, slots=True)
class Setup:
    """How the benchmark ran, in addition to its configuration.

    Attributes:
        target: the engine's description of the target.
        drafter: the drafter's name.
        is_auto: whether "auto" chose it.
        n_ctx, n_threads: the same for both contexts.
        max_draft: the most tokens that a round drafts.
        weight_bytes: the bytes of weights that decoding one plain token reads.
        weight_basis: the source of that number.
        streaming: the memory bandwidth of this machine; None if the weights are on a GPU.
        placement: the number of the target's layers on each device.
        draft_placement: the same for the draft; None if it is not a model.
        provenance: versions, machine and files, as JSON types.
        notes: remarks for a reader.

    """

    target: str
    drafter: str
    n_ctx: int
    n_threads: int
    max_draft: int
    weight_bytes: int
    weight_basis: str
    streaming: Streaming | None
    provenance: dict[str, Any]
    notes: tuple[str, ...] = ()
    placement: dict[str, int] = field(default_factory=dict)
    draft_placement: dict[str, int] | None = None
    is_auto: bool = False

    @property
    def label(self) -> str:
        """The draft's name in tables: its file, else its name; "auto: ..." where auto chose it."""
        files = self.provenance.get("files", {})
        name = str(files["draft"]["name"]) if "draft" in files else self.drafter
        return f"auto: {name}" if self.is_auto else name

    @property
    def weights_fit_cache(self) -> bool:
        """Whether the cache may hold the weights: memory bandwidth is then no bound."""
        cache: int = self.provenance["machine"]["last_level_cache_bytes"]
        return self.weight_bytes <= cache


@dataclass(frozen=True, slots=True)
class BenchResult:
    """A benchmark's figures.

    Attributes:
        config: the configuration of the run.
        setup: how it ran.
        prompts: in the file's order; after an interruption, only prompts with a pair.
        n_off_script: rounds of synthetic acceptance that the oracle could not script.
        is_interrupted: Ctrl-C ended it.
        failure: the error that ended it, if any; the figures up to it are kept.
        peer_failures: the peer's errors, by prompt id.
        span: when it began and ended, and the load average then.
        others: the results of further drafts against the same plain texts.

    """

    config: BenchConfig
    setup: Setup
    prompts: tuple[PromptResult, ...]
    n_off_script: int = 0
    is_interrupted: bool = False
    failure: str | None = None
    peer_failures: dict[str, str] = field(default_factory=dict)
    span: dict[str, Any] = field(default_factory=dict)
    others: tuple[BenchResult, ...] = ()

    @property
    def is_synthetic(self) -> bool:
        """Whether the acceptance is synthetic."""
        return bool(self.config.synthetic_acceptance)

    @property
    def pairs(self) -> list[Pair]:
        """All texts of all prompts."""
        return [pair for prompt in self.prompts for pair in prompt.pairs]

    @property
    def comparison(self) -> Comparison:
        """The totals over everything."""
        return compare_pairs(self.pairs)

    @property
    def speedups(self) -> Spread | None:
        """The spread of the speed-ups of the repeats, each over all prompts."""
        return spread(one.speedup for one in repeats_of(self.prompts))

    @property
    def categories(self) -> dict[str, Comparison]:
        """The totals by category, in the file's order."""
        names = dict.fromkeys(prompt.category for prompt in self.prompts)
        return {
            name: compare_pairs(
                pair for prompt in self.prompts if prompt.category == name for pair in prompt.pairs
            )
            for name in names
        }
