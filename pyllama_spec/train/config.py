"""The configuration of a training run. With the target it determines the result."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from pyllama_spec.engine.checks import count, listed, one_of, real
from pyllama_spec.errors import ArgumentError
from pyllama_spec.gguf.writer import KINDS

PRECISIONS = ("auto", "fp32", "bf16")
WEIGHTS = ("decay", "dpace")
# Of the n-gram table. Three times as many gave 0.01 tokens per round more: rare contexts seldom
# occur again.
N_NGRAMS = 800_000
# More than any model has.
_MAX_LAYERS = 4096
# The most slots of a block: more pay on no CPU, and no draft of ours is accepted that far. And with
# a Markov head none that the engine takes: its chain is unrolled in the graph.
_MAX_BLOCK, _MAX_CHAIN = 64, 32


def option(
    default: Any,
    flag: str | Mapping[bool, str] = "",
    *,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: tuple[str | None, ...] = (),
) -> Any:
    """A field of a configuration.

    Args:
        default: its default; None is then allowed whatever the bounds are.
        flag: its option on the command line, or the options of its values; "" if it has none, or
            decides nothing about a draft.
        least: the lower bound of its value.
        most: the upper bound.
        above: a lower bound that it must not reach.
        below: an upper bound that it must not reach.
        choices: the values that it may have.
    """
    bounds = {"least": least, "most": most, "above": above, "below": below, "choices": choices}
    return field(default=default, metadata={"flag": flag, **bounds})


class Settings:
    """A part of a configuration, whose fields are checked by their bounds."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for one in fields(self):  # type: ignore[arg-type]
            value = getattr(self, one.name)
            if one.metadata and not (value is None and one.default is None):
                _check(one, value)


def _check(one: Field[Any], value: Any) -> None:
    bounds = one.metadata
    if bounds["choices"]:
        one_of(value, bounds["choices"], one.name)
    least, most = bounds["least"], bounds["most"]
    if least is None and bounds["above"] is None:
        return
    low = bounds["above"] if least is None else least
    if "int" in str(one.type):
        count(value, one.name, int(low), *(() if most is None else (int(most),)))
        return
    number = real(value, one.name, low, *(() if most is None else (most,)))
    if number == bounds["above"] or (bounds["below"] is not None and number >= bounds["below"]):
        upper = bounds["below"] if most is None else most
        rest = "" if upper is None else f" and {'below' if most is None else 'at most'} {upper:g}"
        least_words = f"above {low:g}" if least is None else f"from {low:g} on"
        raise ArgumentError(one.name, value, f"a number {least_words}{rest}")


@dataclass(frozen=True, slots=True)
class CorpusConfig(Settings):
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

    prompts: Path | None = option(None, "--prompts")  # noqa: RUF009 - it is None
    n_tokens: int = option(500_000, "--tokens", least=1)
    n_ctx: int = option(384, "--n-ctx", least=1)
    n_parallel: int = option(64, "--parallel", least=1)
    n_candidates: int = option(64, least=1)
    greedy_share: float = option(0.75, "--greedy-share", least=0, most=1)
    temperature: float = option(0.8, "--temperature", least=0)
    user_temperature: float = option(1.0, least=0)
    prompt_seed_share: float = option(0.75, least=0, most=1)
    min_user: int = option(2, least=1)
    max_user: int = option(64, least=1)
    min_answer: int = option(16, least=1)
    max_passes: int = option(8, least=1)
    seed: int = option(1, "--seed", least=0)

    def identity(self) -> dict[str, Any]:
        """The settings that determine the text, apart from its length."""
        facts = asdict(self)
        for name in ("prompts", "n_tokens", "n_parallel"):
            del facts[name]
        return facts


@dataclass(frozen=True, slots=True)
class UseConfig(Settings):
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
    n_tokens: int = option(40_000, least=1)
    n_other_tokens: int = option(2_000, least=0)
    held_out: float = option(0.2, above=0, below=1)
    right_share: float = option(0.5, least=0, most=1)
    max_loss: float = option(0.1, least=0, most=1)


@dataclass(frozen=True, slots=True)
class HeadSettings(Settings):
    """The shape of a draft of any kind. None means a default that suits the target.

    Attributes:
        target_layers: the layer inputs that it reads; "input of layer k", as in docs/eagle3.md.
        n_head, n_head_kv: attention heads.
        n_ff: width of the feed-forward block.
        n_draft_vocab: the number of the target's tokens that it can draft.
    """

    target_layers: tuple[int, ...] | None = option(None, "--target-layers")
    n_head: int | None = option(None, "--n-head", least=1)
    n_head_kv: int | None = option(None, "--n-head-kv", least=1)
    n_ff: int | None = option(None, "--n-ff", least=1)
    n_draft_vocab: int | None = option(None, "--draft-vocab", least=1)

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        for layer in listed(self.target_layers or (), "target_layers", _MAX_LAYERS):
            count(layer, "target_layers", 0)
        if self.target_layers is not None and not self.target_layers:
            raise ArgumentError("target_layers", (), "at least one layer input")


@dataclass(frozen=True, slots=True)
class FitSettings(Settings):
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

    epochs: float = option(2.6, "--epochs", above=0)
    step_decay: float = option(0.8, "--step-decay", above=0, most=1)
    missed_share: float = option(0.2, "--missed-share", least=0, most=1)
    copied_share: float | None = option(None, "--copied-share", least=0, most=1)
    train_output: bool = option(False, {True: "--train-output"})
    batch_tokens: int = option(512, "--batch-tokens", least=1)
    lr: float = option(5e-4, "--lr", above=0)
    weight_decay: float = option(0.01, "--weight-decay", least=0)
    warmup: float = option(0.04, least=0, below=1)
    clip: float = option(1.0, above=0)
    precision: str = option("auto", "--precision", choices=PRECISIONS)
    held_out: float = option(0.03, least=0, below=1)
    max_held_out: int = option(16_384, least=1)
    n_evals: int = option(16, least=1)
    patience: int = option(6, "--patience", least=1)
    seed: int = option(1, least=0)


@dataclass(frozen=True, slots=True)
class RunConfig(Settings):
    """A whole run: from a target's GGUF to a draft's. Each kind of draft adds its options.

    Attributes:
        kind: the kind of draft, as on the command line.
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

    target: Path
    out: Path
    work: Path | None = None
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    head: HeadSettings = field(default_factory=HeadSettings)
    fit: FitSettings = field(default_factory=FitSettings)
    init: Path | None = option(None, "--init")  # noqa: RUF009 - it is None
    n_top: int = option(32, least=1)
    max_disk_bytes: int = option(12_000_000_000, least=0, most=1 << 60)
    export_type: str = option("f16", "--type", choices=KINDS)
    n_threads: int | None = option(None, least=0)
    n_gpu_layers: int = 0
    devices: tuple[str, ...] | None = None
    device: str | None = option(None, choices=(None, "cpu", "cuda"))
    checkpoint_s: float = option(120.0, least=0)
    restart: bool = False
    n_ngrams: int | None = option(None, "--ngrams", least=0)
    use: UseConfig | None = None

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        begun_with = self.init if self.use is None else self.begun_with
        if begun_with is not None and self.head != type(self.head)():
            raise ArgumentError(
                f"a run that continues {begun_with.name} has its shape; omit the options of the "
                "head (target layers, sizes, plain)"
            )
        if self.use is not None and (self.work is not None or self.restart):
            raise ArgumentError(
                "a run from use has no work folder and cannot restart; omit `work` and `restart`"
            )
        n_ctx, min_answer = self.corpus.n_ctx, self.corpus.min_answer
        if self.use is None and n_ctx <= min_answer:
            raise ArgumentError(
                "n_ctx", n_ctx, f"room for a prompt and an answer of {min_answer} tokens",
                f"give more than {min_answer}, {CorpusConfig().n_ctx} for example",
            )  # fmt: skip
        if self.n_top > self.corpus.n_candidates:
            raise ArgumentError("n_top", self.n_top, f"at most {self.corpus.n_candidates}")

    @property
    def begun_with(self) -> Path:
        """The draft that a run from use continues; by default its output."""
        return self.init or self.out

    @property
    def max_ngrams(self) -> int:
        """The maximum number of contexts of the n-gram table."""
        return N_NGRAMS if self.n_ngrams is None else self.n_ngrams

    @property
    def work_dir(self) -> Path:
        """The folder of corpus, features and checkpoints."""
        return self.work or self.out.with_name(f"{self.out.name}.train")

    def own_flags(self) -> list[str]:
        """Flags of the command line that set several fields."""
        return []


@dataclass(frozen=True, slots=True)
class HeadConfig(HeadSettings):
    """The shape of an EAGLE-3 head; see HeadSettings.

    Attributes:
        fc_norm, norm_output: options of EAGLE-3.1 (arXiv 2605.09992); with both off and three
            target layers, stock llama.cpp loads the head too.
    """

    fc_norm: bool = True
    norm_output: bool = True

    @property
    def is_plain(self) -> bool:
        """Whether the head uses no option of EAGLE-3.1."""
        return not self.fc_norm and not self.norm_output


@dataclass(frozen=True, slots=True)
class FitConfig(FitSettings):
    """The options of fitting an EAGLE-3 head; see FitSettings.

    The default copied_share is 0.1, and 1 for a plain head: stock llama.cpp does not copy.

    Attributes:
        n_steps: the depth of the training-time test: how often the head's own row is fed back.
    """

    n_steps: int = option(4, "--steps", least=1)


@dataclass(frozen=True, slots=True)
class Eagle3TrainConfig(RunConfig):
    """A whole run: from a target's GGUF to an EAGLE-3 draft's; see RunConfig.

    A plain head, for stock llama.cpp, has no n-gram table unless n_ngrams requests one.
    """

    kind: ClassVar[str] = "eagle3"

    head: HeadConfig = field(default_factory=HeadConfig)
    fit: FitConfig = field(default_factory=FitConfig)

    @property
    def max_ngrams(self) -> int:
        """See RunConfig."""
        default = 0 if self.head.is_plain else N_NGRAMS
        return default if self.n_ngrams is None else self.n_ngrams

    def own_flags(self) -> list[str]:
        """See RunConfig."""
        return ["--plain"] if self.head.is_plain else []


@dataclass(frozen=True, slots=True)
class DFlashHeadConfig(HeadSettings):
    """The shape of a DFlash draft; see HeadSettings.

    Attributes:
        n_layer: draft layers.
        block_size: slots of a block, the slot of the known token (the anchor) included.
        causal: whether a slot sees only those before it; otherwise it sees the whole block.
        markov_rank: the rank of the matrix that adds logits for followers of the previous token
            (DSpark, arXiv 2607.05147); 0 for none.
        confidence: whether each slot reports the probability that its token is accepted. This needs
            a markov_rank.
        sample_from_anchor: whether the anchor's slot drafts too, so that a block of n slots drafts
            n tokens instead of n - 1. This needs a markov_rank: engines read files without one
            differently. None for True with a markov_rank.
    """

    n_layer: int = option(2, "--layers", least=1)
    block_size: int = option(4, "--block", least=2, most=_MAX_BLOCK)
    causal: bool = option(False, {True: "--causal"})
    markov_rank: int = option(64, "--markov", least=0)
    confidence: bool = option(False, {True: "--confidence"})
    sample_from_anchor: bool | None = option(None, {True: "--from-anchor", False: "--from-mask"})

    def __post_init__(self) -> None:
        HeadSettings.__post_init__(self)
        if self.markov_rank and self.block_size > _MAX_CHAIN:
            raise ArgumentError(
                "block_size", self.block_size, f"at most {_MAX_CHAIN} with a `markov_rank`"
            )
        for name in ("confidence", "sample_from_anchor"):
            if getattr(self, name) and not self.markov_rank:
                raise ArgumentError(name, True, remedy="give a `markov_rank` above 0")

    @property
    def from_anchor(self) -> bool:
        """Whether the anchor's slot drafts."""
        chosen = self.sample_from_anchor
        return self.markov_rank > 0 if chosen is None else chosen

    @property
    def n_steps(self) -> int:
        """The number of tokens that a block drafts."""
        return self.block_size - (0 if self.from_anchor else 1)


@dataclass(frozen=True, slots=True)
class DFlashFitConfig(FitSettings):
    """The options of fitting a DFlash draft; see FitSettings.

    A missed_share of 0, the default here, cuts the loss at the draft's first wrong pick (Spec-AUF,
    arXiv 2607.01893); 1 never does. The default copied_share is 0.1, and the learning rate is twice
    that of a head with a better start.

    Attributes:
        anchor_share: the share of positions at which a block begins, drawn anew in each batch.
        weights: the weight of a depth: "decay" for step_decay ** depth, "dpace" for its part of the
            expected number of accepted tokens (D-PACE, arXiv 2605.18810).
        dpace_alpha: the share of that weight for tokens that the draft never gets right.
        hard_share: the share of the loss against the text's own token; the rest is against the
            target's distribution.
    """

    missed_share: float = option(0.0, "--missed-share", least=0, most=1)
    lr: float = option(1e-3, "--lr", above=0)
    anchor_share: float = option(0.5, "--anchor-share", above=0, most=1)
    weights: str = option("dpace", "--weights", choices=WEIGHTS)
    dpace_alpha: float = option(0.5, "--dpace-alpha", least=0, most=1)
    hard_share: float = option(0.0, "--hard-share", least=0, most=1)


@dataclass(frozen=True, slots=True)
class DFlashTrainConfig(RunConfig):
    """A whole run: from a target's GGUF to a DFlash draft's; see RunConfig.

    The default type of matrices is q8_0: two layers are twice EAGLE-3's one.
    """

    kind: ClassVar[str] = "dflash"

    head: DFlashHeadConfig = field(default_factory=DFlashHeadConfig)
    fit: DFlashFitConfig = field(default_factory=DFlashFitConfig)
    export_type: str = option("q8_0", "--type", choices=KINDS)


@dataclass(frozen=True, slots=True)
class MtpFitConfig(FitSettings):
    """The options of fitting an MTP head; see FitSettings.

    copied_share is 0.1 by default. The learning rate is lower than that of a new draft, since the
    head is trained already. The output matrix is the target's, and is not trained.

    Attributes:
        n_steps: the tokens of a draft: how often the head's own row is fed back.
        n_loss_vocab: the number of most frequent ids in losses and measurements, as many as a head
            that drafts over a part of the vocabulary chooses from (drafters/output_part.py); the
            head itself keeps all ids of the target.
    """

    lr: float = option(2e-4, "--lr", above=0)
    n_steps: int = option(3, "--steps", least=1)
    n_loss_vocab: int = option(16384, "--loss-vocab", least=1)

    def __post_init__(self) -> None:
        FitSettings.__post_init__(self)
        if self.train_output:
            raise ArgumentError(
                "train_output", True, remedy="omit it: an MTP head uses its target's output matrix"
            )


@dataclass(frozen=True, slots=True)
class MtpTrainConfig(RunConfig):
    """A whole run: from a target's GGUF with an MTP head to the file of a trained one.

    See RunConfig. `init` names the file of an earlier run whose head to train; without it, the
    target's head is trained. The head's shape is fixed, and the file gets no n-gram table.
    """

    kind: ClassVar[str] = "mtp"

    fit: MtpFitConfig = field(default_factory=MtpFitConfig)

    def __post_init__(self) -> None:
        RunConfig.__post_init__(self)
        if self.head != HeadSettings():
            raise ArgumentError("the file of an MTP head sets its shape; omit `head`")
        if self.n_ngrams:
            raise ArgumentError(
                "n_ngrams", self.n_ngrams, remedy="omit it: a head alone has no n-gram table"
            )

    @property
    def begun_with(self) -> Path:
        """The file of the initial head; for a run from use its output, if that exists."""
        is_there = self.use is not None and self.out.exists()
        return self.init or (self.out if is_there else self.target)


def command(config: RunConfig) -> str:
    """The command line of a run, with file names without folders."""
    words = ["pyllama-spec", "train", config.kind, "-m", config.target.name]
    words += ["-o", config.out.name]
    if config.use is not None:
        words += ["--from-use", config.use.store.name]
        if config.use.n_tokens != UseConfig(config.use.store).n_tokens:
            words += ["--tokens", str(config.use.n_tokens)]
    flags, options = config.own_flags(), list[str]()
    for owner, one in _options(config):
        value, flag = getattr(owner, one.name), one.metadata["flag"]
        if not isinstance(flag, str):
            flags += [flag[value]] if value in flag else []
        elif value != (None if one.default is MISSING else one.default):
            options += [flag, _word(value)]
    return shlex.join([*words, *flags, *options])


def _options(config: RunConfig) -> list[tuple[Any, Field[Any]]]:
    """The options of the command line, each with its owner: those of all kinds first."""
    common: list[tuple[Any, Field[Any]]] = []
    own: list[tuple[Any, Field[Any]]] = []
    parts = ((config.corpus, CorpusConfig), (config.head, HeadSettings), (config.fit, FitSettings))
    for owner, base in (*parts, (config, RunConfig)):
        names = {one.name for one in fields(base)}
        for one in fields(owner):
            if one.metadata.get("flag"):
                (common if one.name in names else own).append((owner, one))
    return [*common, *own]


def _word(value: Any) -> str:
    if isinstance(value, Path):
        return value.name
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
