"""The configuration of a training run. With the target it determines the result."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pyllama_spec.engine.checks import checked
from pyllama_spec.errors import ArgumentError
from pyllama_spec.gguf.writer import KINDS
from pyllama_spec.options import option, options_of, with_default

# The likeliest next tokens to keep of each distribution of the target.
N_TOP = 32
# The most slots of a block: no draft of ours is accepted that far, and the engine unrolls the chain
# of a Markov head in the graph.
_MAX_BLOCK = 32


@dataclass(frozen=True, slots=True)
class CorpusConfig:
    """The options of the training text.

    Attributes:
        prompts: a file with one prompt per line; None lets the target write its own user turns.
        n_tokens: answer tokens to collect.
        n_ctx: the most tokens of one sequence, prompt and answer together.
        n_parallel: sequences to decode at once.
        greedy_share: the share of answers at temperature 0, as drafts are used mostly at low ones.
        temperature: the temperature of the other answers; that of user turns is 1.
        prompt_seed_share: the share of user turns that begin with one of our prompt seeds.
        min_user, max_user: tokens of a user turn, without its prompt seed; longer ones are cut off.
        min_answer: the fewest tokens of an answer.
        max_passes: the most answers to one prompt of a file.
        seed: the seed of all random draws.
    """

    # fmt: off
    prompts: Path | None = option(
        None, cli="--prompts", metavar="F.jsonl",
        help="a JSON prompt per line [the target writes prompts]",
    )
    n_tokens: int = option(
        500_000, low=1, cli="--tokens", cli_default=None, metavar="N",
        help="answer tokens to train on [500000; with --from-use the newest 40000]",
    )
    n_ctx: int = option(384, low=1, cli="--n-ctx", help="maximum sequence length")
    n_parallel: int = option(
        64, low=1, cli="--parallel", metavar="N", help="sequences generated in parallel"
    )
    greedy_share: float = option(0.75, low=0, high=1)
    temperature: float = option(0.8, low=0)
    prompt_seed_share: float = option(0.75, low=0, high=1)
    min_user: int = option(2, low=1)
    max_user: int = option(64, low=1)
    min_answer: int = option(16, low=1)
    max_passes: int = option(8, low=1)
    seed: int = option(1, low=0, cli="--seed", help="seed of all random draws")
    # fmt: on

    def __post_init__(self) -> None:
        check(self)

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
    """

    store: Path
    n_tokens: int = option(40_000, low=1)
    n_other_tokens: int = option(2_000, low=0)
    held_out: float = option(0.2, low=0, high=1)

    def __post_init__(self) -> None:
        check(self)
        if not 0 < self.held_out < 1:
            raise ArgumentError("held_out", self.held_out, "a share between 0 and 1")


@dataclass(frozen=True, slots=True)
class HeadSettings:
    """The shape of a draft of any kind. None means a default that suits the target.

    Attributes:
        target_layers: the layer inputs that it reads; "input of layer k", as in docs/eagle3.md.
        n_ff: width of the feed-forward block.
        n_draft_vocab: the number of the target's tokens that it can draft.
    """

    # fmt: off
    target_layers: tuple[int, ...] | None = option(
        None, cli="--target-layers", metavar="A,B,C",
        help="layer inputs of the target that the draft reads [six from the first to the last]",
    )
    n_draft_vocab: int | None = option(
        None, low=1, cli="--draft-vocab", metavar="N",
        help="size of the draft's vocabulary [97%% of the text]",
    )
    n_ff: int | None = option(
        None, low=1, cli="--n-ff", help="width of its feed-forward block [the target's]"
    )
    # fmt: on

    def __post_init__(self) -> None:
        check(self)
        if self.target_layers is not None and not self.target_layers:
            raise ArgumentError("target_layers", (), "at least one layer input")


@dataclass(frozen=True, slots=True)
class FitSettings:
    """The options of fitting a draft of any kind.

    Attributes:
        epochs: passes over the corpus.
        batch_tokens: tokens of a batch, prompts included.
        lr: peak learning rate of AdamW.
        warmup: the share of all steps with a rising rate.
        clip: the largest gradient norm.
        precision: "bf16" computes products in bfloat16 and keeps weights and sums in float32;
            "auto" does this if it is faster.
        held_out: the share of prompts kept for measurements.
        n_evals: the number of measurements in the whole run.
        seed: the seed of the initial weights and the order of the text.
    """

    # fmt: off
    epochs: float = option(2.6, low=0, cli="--epochs", help="passes over the text")
    batch_tokens: int = option(
        512, low=1, cli="--batch-tokens", metavar="N",
        help="tokens of a batch, prompts included",
    )
    lr: float = option(5e-4, low=0, cli="--lr", help="peak learning rate")
    warmup: float = option(0.04, low=0, high=1)
    clip: float = option(1.0, low=0)
    precision: str = option(
        "auto", choices=("auto", "fp32", "bf16"), cli="--precision",
        help="type of matrix products; auto measures which is faster",
    )
    held_out: float = option(0.03, low=0, high=1)
    n_evals: int = option(16, low=1)
    seed: int = option(1, low=0)
    # fmt: on

    def __post_init__(self) -> None:
        check(self)
        for name in ("epochs", "lr", "clip"):
            if getattr(self, name) == 0:
                raise ArgumentError(name, 0, "a number above 0")
        for name in ("warmup", "held_out"):
            if getattr(self, name) == 1:
                raise ArgumentError(name, 1, "a share below 1")


def check(settings: Any) -> None:
    """Checks a part of the configuration by its table of options."""
    for one in options_of(type(settings)).values():
        checked(one, getattr(settings, one.name))


@dataclass(frozen=True, slots=True)
class RunConfig:
    """A whole run: from a target's GGUF to a draft's. Each kind of draft adds its options.

    Attributes:
        kind: the kind of draft, as on the command line.
        target: the GGUF to draft for, in the type used for decoding.
        out: the GGUF to write.
        work: the folder of text, features and checkpoints; None for the output's name with
            ".train".
        init: a draft whose weights, shape and vocabulary to start from; None for a new one.
        export_type: the type of the matrices in the file.
        n_threads: the CPU threads; None for the machine's cores.
        n_gpu_layers, devices: the target's layers on devices, and the devices; None for all.
        device: "cpu" or "cuda" for the head; None for a GPU if PyTorch finds one.
        use: the source of train_from_use(), which replaces the target's own text.
    """

    kind: ClassVar[str]
    # fmt: off
    target: Path
    out: Path
    work: Path | None = option(
        None, cli="--work", group="run",
        help="folder of text, features and checkpoints [OUT.gguf.train]",
    )
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    head: HeadSettings = field(default_factory=HeadSettings)
    fit: FitSettings = field(default_factory=FitSettings)
    init: Path | None = option(
        None, cli="--init", metavar="DRAFT.gguf", group="draft",
        help="start with this draft's weights, to train on more text or for a fine-tuned target",
    )
    export_type: str = option(
        "f16", choices=KINDS, cli="--type", cli_default=None, group="draft",
        help="type of the matrices in the file [f16; with --from-use the draft's]",
    )
    n_threads: int | None = option(None, low=0)
    n_gpu_layers: int = 0
    devices: tuple[str, ...] | None = None
    device: str | None = option(
        None, choices=("cpu", "cuda"), cli="--device", group="run",
        help="device to train on [a GPU if there is one]",
    )
    use: UseConfig | None = None
    # fmt: on

    def __post_init__(self) -> None:
        check(self)
        begun_with = self.init if self.use is None else self.begun_with
        if begun_with is not None and self.head != type(self.head)():
            raise ArgumentError(
                problem=f"a run that continues {begun_with.name} has its shape",
                remedy="omit the options of the head (target layers, sizes, plain)",
            )  # fmt: skip
        if self.use is not None and self.work is not None:
            raise ArgumentError("work", problem="is not for a run from use", remedy="omit it")
        n_ctx, min_answer = self.corpus.n_ctx, self.corpus.min_answer
        if self.use is None and n_ctx <= min_answer:
            raise ArgumentError(
                "n_ctx", n_ctx, f"room for a prompt and an answer of {min_answer} tokens",
                f"give more than {min_answer}, {CorpusConfig().n_ctx} for example",
            )  # fmt: skip

    @property
    def begun_with(self) -> Path:
        """The draft that a run from use continues; by default its output."""
        return self.init or self.out

    @property
    def work_dir(self) -> Path:
        """The folder of corpus, features and checkpoints."""
        return self.work or self.out.with_name(f"{self.out.name}.train")


@dataclass(frozen=True, slots=True)
class HeadConfig(HeadSettings):
    """The shape of an EAGLE-3 head; see HeadSettings.

    Attributes:
        plain: without the norms of EAGLE-3.1 (arXiv 2605.09992); with three target layers, stock
            llama.cpp loads the head too.
    """

    plain: bool = option(
        False, cli="--plain",
        help="without the norms of EAGLE-3.1, so that stock llama.cpp loads it",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class FitConfig(FitSettings):
    """The options of fitting an EAGLE-3 head; see FitSettings.

    Attributes:
        n_steps: the depth of the training-time test: how often the head's own row is fed back.
    """

    n_steps: int = option(
        4, low=1, cli="--steps", metavar="N", help="depth to which it learns to draft"
    )


@dataclass(frozen=True, slots=True)
class Eagle3TrainConfig(RunConfig):
    """A whole run: from a target's GGUF to an EAGLE-3 draft's; see RunConfig."""

    kind: ClassVar[str] = "eagle3"

    head: HeadConfig = field(default_factory=HeadConfig)
    fit: FitConfig = field(default_factory=FitConfig)


@dataclass(frozen=True, slots=True)
class DFlashHeadConfig(HeadSettings):
    """The shape of a DFlash draft; see HeadSettings.

    Attributes:
        n_layer: draft layers.
        block_size: slots of a block, the slot of the known token (the anchor) included.
    """

    # fmt: off
    n_layer: int = option(2, low=1, cli="--layers", metavar="N", help="layers")
    block_size: int = option(
        4, low=2, high=_MAX_BLOCK, cli="--block", metavar="N",
        help="slots of a block, the known token's included",
    )
    # fmt: on


@dataclass(frozen=True, slots=True)
class DFlashFitConfig(FitSettings):
    """The options of fitting a DFlash draft: twice the rate of a head with a better start."""

    lr: float = with_default(FitSettings, "lr", 1e-3)


@dataclass(frozen=True, slots=True)
class DFlashTrainConfig(RunConfig):
    """A whole run: from a target's GGUF to a DFlash draft's; see RunConfig.

    The default type of matrices is q8_0: two layers are twice EAGLE-3's one.
    """

    kind: ClassVar[str] = "dflash"

    head: DFlashHeadConfig = field(default_factory=DFlashHeadConfig)
    fit: DFlashFitConfig = field(default_factory=DFlashFitConfig)
    export_type: str = with_default(RunConfig, "export_type", "q8_0")


@dataclass(frozen=True, slots=True)
class MtpFitConfig(FitConfig):
    """The options of fitting an MTP head; see FitConfig.

    The learning rate is lower than that of a new draft, since the head is trained already. The
    output matrix is the target's, and is not trained.
    """

    lr: float = with_default(FitSettings, "lr", 2e-4)
    n_steps: int = with_default(FitConfig, "n_steps", 3)


@dataclass(frozen=True, slots=True)
class MtpTrainConfig(RunConfig):
    """A whole run: from a target's GGUF with an MTP head to the file of a trained one.

    See RunConfig. `init` names the file of an earlier run whose head to train; without it, the
    target's head is trained. The head's shape is fixed.
    """

    kind: ClassVar[str] = "mtp"

    fit: MtpFitConfig = field(default_factory=MtpFitConfig)

    def __post_init__(self) -> None:
        RunConfig.__post_init__(self)
        if self.head != HeadSettings():
            raise ArgumentError("head", problem="does not apply to an MTP head", remedy="omit it")

    @property
    def begun_with(self) -> Path:
        """The file of the initial head; for a run from use its output, if that exists."""
        is_there = self.use is not None and self.out.exists()
        return self.init or (self.out if is_there else self.target)
