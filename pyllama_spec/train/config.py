"""The configuration of a training run; each kind of draft extends it in its folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pyllama_spec.engine.checks import count, listed, real
from pyllama_spec.errors import ArgumentError
from pyllama_spec.gguf.writer import KINDS

PRECISIONS = ("auto", "fp32", "bf16")


# Of the n-gram table. Three times as many gave 0.01 tokens per round more: rare contexts seldom
# occur again.
N_NGRAMS = 800_000
# More than any model has.
_MAX_LAYERS = 4096


@dataclass(frozen=True, slots=True)
class CorpusConfig:
    """The options of the training text.

    Attributes:
        prompts: a file with one prompt per line; None lets the target write its own user turns.
        n_tokens: answer tokens to collect.
        n_ctx: the most tokens of one sequence, prompt and answer together.
        n_parallel: sequences to decode at once.
        n_candidates: the number of likeliest tokens to draw from.
        greedy_share: the share of answers at temperature 0, as drafts are used mostly at low ones.
        temperature: the temperature of the other answers.
        user_temperature: the temperature of user turns.
        prompt_seed_share: the share of user turns that begin with one of our prompt seeds.
        min_user, max_user: tokens of a user turn, without its prompt seed; longer ones are cut off.
        min_answer: the fewest tokens of an answer.
        max_passes: the most answers to one prompt of a file.
        seed: the seed of all random draws.
    """

    prompts: Path | None = None
    n_tokens: int = 500_000
    n_ctx: int = 384
    n_parallel: int = 64
    n_candidates: int = 64
    greedy_share: float = 0.75
    temperature: float = 0.8
    user_temperature: float = 1.0
    prompt_seed_share: float = 0.75
    min_user: int = 2
    max_user: int = 64
    min_answer: int = 16
    max_passes: int = 8
    seed: int = 1

    def __post_init__(self) -> None:
        for name in (
            "n_tokens", "n_ctx", "n_parallel", "n_candidates", "min_user", "max_user",
            "min_answer", "max_passes",
        ):  # fmt: skip
            count(getattr(self, name), name, 1)
        count(self.seed, "seed", 0)
        for name in ("temperature", "user_temperature"):
            real(getattr(self, name), name, 0.0)
        check_shares(self, "greedy_share", "prompt_seed_share")

    def identity(self) -> dict[str, Any]:
        """The settings that determine the text, apart from its length."""
        facts = asdict(self)
        for name in ("prompts", "n_tokens", "n_parallel"):
            del facts[name]
        return facts


@dataclass(frozen=True, slots=True)
class UseConfig:
    """The options of training further from the owner's use.

    Attributes:
        store: a draft memory written by requests, with the target's tokenizer.
        n_tokens: the most answer tokens to learn from, the newest of the store.
        n_other_tokens: tokens of other answers, which the target writes to measure the loss on
            them.
        held_out: the share of conversations not learned from: half of them choose the best weights,
            the other half judges the result.
        right_share: the share to learn from of the drafts that were right when the text was made.
            All of them if the store does not record where the draft was wrong.
        max_loss: the share of tokens per round on other text that may be lost.
    """

    store: Path
    n_tokens: int = 40_000
    n_other_tokens: int = 2_000
    held_out: float = 0.2
    right_share: float = 0.5
    max_loss: float = 0.1

    def __post_init__(self) -> None:
        count(self.n_tokens, "n_tokens", 1)
        count(self.n_other_tokens, "n_other_tokens", 0)
        check_shares(self, "held_out", "right_share", "max_loss")
        if not 0 < self.held_out < 1:
            raise ArgumentError(
                f"held_out={self.held_out!r} is not between 0 and 1: text is needed to train on "
                "and to measure on"
            )


@dataclass(frozen=True, slots=True)
class HeadSettings:
    """The shape of a draft of any kind. None means a default that suits the target.

    Attributes:
        target_layers: the layer inputs that it reads; "input of layer k", as in docs/eagle3.md.
        n_head, n_head_kv: attention heads.
        n_ff: width of the feed-forward block.
        n_draft_vocab: the number of the target's tokens that it can draft.
    """

    target_layers: tuple[int, ...] | None = None
    n_head: int | None = None
    n_head_kv: int | None = None
    n_ff: int | None = None
    n_draft_vocab: int | None = None

    def __post_init__(self) -> None:
        for name in ("n_head", "n_head_kv", "n_ff", "n_draft_vocab"):
            if getattr(self, name) is not None:
                count(getattr(self, name), name, 1)
        for layer in listed(self.target_layers or (), "target_layers", _MAX_LAYERS):
            count(layer, "target_layers", 0)
        if self.target_layers is not None and not self.target_layers:
            raise ArgumentError("target_layers is empty: a head reads at least one layer input")


@dataclass(frozen=True, slots=True)
class FitSettings:
    """The options of fitting a draft of any kind.

    Attributes:
        epochs: passes over the corpus.
        step_decay: the loss at depth s has the weight step_decay ** s.
        missed_share: the share of drafts, drawn anew in each batch, that continue to learn after a
            wrong pick, where decoding would reject the rest.
        copied_share: the share of drafts that begin where decoding would copy, drawn in the same
            way; None for the kind's default.
        train_output: whether to train the output matrix too; otherwise it stays the target's.
        batch_tokens: tokens of a batch, prompts included.
        lr: peak learning rate of AdamW.
        weight_decay: the weight decay of matrices.
        warmup: the share of all steps with a rising rate.
        clip: the largest gradient norm.
        precision: "bf16" computes products in bfloat16 and keeps weights and sums in float32;
            "auto" does this if it is faster.
        held_out: the share of prompts kept for measurements.
        max_held_out: the most tokens to measure on.
        n_evals: the number of measurements in the whole run.
        patience: the number of measurements without progress that ends the run.
        seed: the seed of the initial weights and the order of the text.
    """

    epochs: float = 2.6
    step_decay: float = 0.8
    missed_share: float = 0.2
    copied_share: float | None = None
    train_output: bool = False
    batch_tokens: int = 512
    lr: float = 5e-4
    weight_decay: float = 0.01
    warmup: float = 0.04
    clip: float = 1.0
    precision: str = "auto"
    held_out: float = 0.03
    max_held_out: int = 16_384
    n_evals: int = 16
    patience: int = 6
    seed: int = 1

    def __post_init__(self) -> None:
        for name in ("batch_tokens", "max_held_out", "n_evals", "patience"):
            count(getattr(self, name), name, 1)
        count(self.seed, "seed", 0)
        for name in ("epochs", "lr", "clip", "weight_decay", "warmup"):
            real(getattr(self, name), name, 0.0)
        for name in ("epochs", "lr", "clip"):
            if getattr(self, name) == 0:
                raise ArgumentError(f"{name}={getattr(self, name)!r}: give a number above 0")
        for name in ("warmup", "held_out"):
            if not 0 <= real(getattr(self, name), name) < 1:
                raise ArgumentError(f"{name}={getattr(self, name)!r} is outside 0 .. 1")
        if not 0 < real(self.step_decay, "step_decay") <= 1:
            raise ArgumentError(f"step_decay={self.step_decay!r} is outside 0 .. 1")
        check_shares(self, "missed_share")
        check_shares(self, "copied_share", optional=True)
        if self.precision not in PRECISIONS:
            raise ArgumentError(
                f"precision={self.precision!r} is not one of {', '.join(PRECISIONS)}"
            )


def check_shares(settings: object, *names: str, optional: bool = False) -> None:
    """Raises ArgumentError unless fields are 0 .. 1, or None where that is allowed."""
    for name in names:
        value = getattr(settings, name)
        if optional and value is None:
            continue
        if not 0 <= real(value, name) <= 1:
            raise ArgumentError(f"{name}={value!r} is outside 0 .. 1")


@dataclass(frozen=True, slots=True)
class RunConfig:
    """A whole run: from a target's GGUF to a draft's. Each kind of draft adds its options.

    Attributes:
        kind: the kind of draft, as on the command line.
        options, flags: the kind's further options, each with the field that it sets; a flag with
            the value that it sets.
        target: the GGUF to draft for, in the type used for decoding.
        out: the GGUF to write.
        work: the folder of text, features and checkpoints; None for the output's name with
            ".train".
        init: a draft whose weights, shape and vocabulary to start from; None for a new one.
        n_top: the number of likeliest next tokens to keep of each distribution of the target.
        max_disk_bytes: the maximum size of features on disk; others are recomputed in every epoch.
        export_type: the type of the matrices in the file.
        n_threads: the CPU threads; None for the machine's cores.
        n_gpu_layers, devices: the target's layers on devices, and the devices; None for all.
        device: "cpu" or "cuda" for the head; None for a GPU if PyTorch finds one.
        checkpoint_s: seconds between checkpoints.
        restart: trains again from step 0, with the existing text.
        n_ngrams: the most contexts of the n-gram table in the draft's file, 9 bytes each; 0 for no
            table, as stock llama.cpp requires. None for 800,000.
        use: the source of train_from_use(), which replaces the target's own text.
    """

    kind: ClassVar[str]
    options: ClassVar[Mapping[str, str]] = {}
    flags: ClassVar[Mapping[str, tuple[str, bool]]] = {}

    target: Path
    out: Path
    work: Path | None = None
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    head: HeadSettings = field(default_factory=HeadSettings)
    fit: FitSettings = field(default_factory=FitSettings)
    init: Path | None = None
    n_top: int = 32
    max_disk_bytes: int = 12_000_000_000
    export_type: str = "f16"
    n_threads: int | None = None
    n_gpu_layers: int = 0
    devices: tuple[str, ...] | None = None
    device: str | None = None
    checkpoint_s: float = 120.0
    restart: bool = False
    n_ngrams: int | None = None
    use: UseConfig | None = None

    def __post_init__(self) -> None:
        count(self.n_top, "n_top", 1)
        if self.n_ngrams is not None:
            count(self.n_ngrams, "n_ngrams", 0)
        begun_with = self.init if self.use is None else self.begun_with
        if begun_with is not None and self.head != type(self.head)():
            raise ArgumentError(
                f"a run that continues {begun_with.name} has its shape; omit the options of the "
                "head (target layers, sizes, plain)"
            )
        if self.use is not None and (self.work is not None or self.restart):
            raise ArgumentError(
                "a run from use has no work folder and cannot restart: omit work and restart"
            )
        n_ctx, min_answer = self.corpus.n_ctx, self.corpus.min_answer
        if self.use is None and n_ctx <= min_answer:
            raise ArgumentError(
                f"n_ctx={n_ctx} has no room for a prompt and an answer of at least {min_answer} "
                f"tokens: give more than {min_answer}, {CorpusConfig().n_ctx} for example"
            )
        if self.n_top > self.corpus.n_candidates:
            raise ArgumentError(
                f"n_top={self.n_top} is more than n_candidates={self.corpus.n_candidates}; lower it"
            )
        if self.n_threads is not None:
            count(self.n_threads, "n_threads", 0)
        real(self.max_disk_bytes, "max_disk_bytes", 0)
        real(self.checkpoint_s, "checkpoint_s", 0)
        if self.export_type not in KINDS:
            raise ArgumentError(
                f"export_type={self.export_type!r} is not one of {', '.join(KINDS)}"
            )
        if self.device not in (None, "cpu", "cuda"):
            raise ArgumentError(f"device={self.device!r} is neither 'cpu' nor 'cuda'")

    @property
    def begun_with(self) -> Path:
        """The draft that a run from use continues; by default its output."""
        return self.init or self.out

    @property
    def max_ngrams(self) -> int:
        """The maximum number of contexts of the n-gram table."""
        return self.default_ngrams if self.n_ngrams is None else self.n_ngrams

    @property
    def default_ngrams(self) -> int:
        """The default of n_ngrams."""
        return N_NGRAMS

    @property
    def work_dir(self) -> Path:
        """The folder of corpus, features and checkpoints."""
        return self.work or self.out.with_name(f"{self.out.name}.train")
