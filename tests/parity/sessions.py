"""Sessions of an open model, drawn at random: how it is opened, who drafts, what is asked of it.

A Session is plain data, so that a failure shrunk by hypothesis can be kept as a case: its repr() is
the code that makes it. session_play.py plays it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from tests.models import DECODERS, EOS
from tests.models.build import WITH_HEADS
from tests.models.mtp import HEADS
from tests.parity.latent_files import LATENT, QUANTISED_SIZES

# Wider parts of a prompt round differently, and where they begin depends on what is held.
EXACT_ROWS = 32

GRAMMARS = (
    'root ::= [a-m]+ "." [n-z]*',
    'root ::= "the answer is " [0-9]+ "." ',
    'root ::= ("yes, " | "no, ") "said the " ("cat" | "hat") ("." | "!")',
    'root ::= "[" [0-9] ("," [0-9])* "]"',
)
_SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["cat", "hat"]}, "legs": {"type": "integer"}},
    "required": ["name", "legs"],
    "additionalProperties": False,
}
FORMATS: dict[str, Any] = {
    "object": {"type": "json_object"},
    "schema": {"type": "json_object", "schema": _SCHEMA},
}
ORACLES = ("perfect", "wrong", "pattern", "intermittent", "hostile", "failing")
SMALL_MODELS = ("copy", "small", "foreign")
DRAFTERS = (
    *ORACLES, "prompt-lookup", "suffix", "grammar", "eagle3", "dflash", "mtp", "certain-mtp",
    *SMALL_MODELS,
)  # fmt: skip
CONTROLLERS = ("fixed", "random", "profit", "off")
FATES = ("whole", "closed", "raises", "stops", "cancelled", "aborted")
# The text of these has what was read, or drafted, until the end came.
CUT_SHORT = ("cancelled", "aborted")
TOYS = (*DECODERS, *WITH_HEADS)
ARCHS = (*TOYS, *(arch for arch in LATENT if arch not in TOYS))
QUANTISED_CACHES = ("q8_0", "q4_0")
_MAX_SIZES = 3


@dataclass(frozen=True)
class Opened:
    """How the model is opened, with a draft and without.

    Attributes:
        sizes: for latent attention, the seed of random head sizes; 0 for the toy's.
        n_head: the number of heads of toys and drafts.
        store: the value of prefix_cache_bytes.

    """

    arch: str = "llama"
    sizes: int = 0
    n_head: int = 4
    output_scale: float = 3.0
    ends: bool = False
    """Whether the text may end by itself."""
    quantised: str = ""
    n_ctx: int = 96
    n_batch: int = 64
    n_ubatch: int = 32
    n_threads: int = 1
    flash_attn: bool | None = None
    cache: str | None = None
    swa_full: bool = True
    n_parallel: int = 1
    store: int | None = None


@dataclass(frozen=True)
class Drafting:
    """The drafter of a session, and its limits.

    Attributes:
        kind: one of DRAFTERS. "mtp" is a random head, "certain-mtp" one that is usually right;
            "copy" is the target itself, "small" another model with its vocabulary, "foreign" one
            with another vocabulary.
        lookup: the `lookup` of a draft from a file.
        seed: the seed of an oracle and a controller; for "small", of its weights.

    """

    kind: str = "perfect"
    n_draft: int | None = 8
    controller: str = "fixed"
    lookup: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class Ask:
    """One request.

    Attributes:
        tail: its prompt's tokens, behind `base`.
        base, n_base: the text of an earlier request, by its number, of which the first n_base
            tokens come before; a number that there is not yet is none.
        options: fields of RequestOptions; a grammar, a format and a bias by their names here.
        fate: "whole", or what befalls it at its `at`-th token: its stream is closed, a logits
            processor raises, a stopping criterion says so, a logits processor cancels, or aborts.
        adapted: whether with an adapter, where the model has none, and the other way round.
        face: "steps", "completion", "echo" or "stream": by which call it is made; others than whole
            ones are steps.

    """

    tail: tuple[int, ...] = (116, 104, 101)
    base: int | None = None
    n_base: int = 0
    options: tuple[tuple[str, Any], ...] = (("max_tokens", 12), ("temperature", 0.0))
    fate: str = "whole"
    at: int = 0
    face: str = "steps"
    adapted: bool = False


@dataclass(frozen=True)
class Together:
    """Requests side by side, as many at a time as the model has places."""

    asks: tuple[Ask, ...]


@dataclass(frozen=True)
class Act:
    """Anything else: "save" or "load" a state, "reset", an adapter "on" or "off".

    "move" restores the state in a newly opened model; "cache" keeps states of completions.
    """

    what: str


@dataclass(frozen=True)
class Session:
    """The acts on a model, in order."""

    opened: Opened = Opened()
    drafting: Drafting = Drafting()
    acts: tuple[Ask | Together | Act, ...] = (Ask(),)


def _fitting(opened: Opened) -> Opened:
    """The opening, or the nearest one that there is."""
    arch, sizes, n_head, quantised = opened.arch, opened.sizes, opened.n_head, opened.quantised
    cache, flash_attn = opened.cache, opened.flash_attn
    if arch == "deepseek4":
        # With heads of those sizes, and with such caches, the engine divides by zero.
        cache = None if cache in QUANTISED_CACHES else cache
        sizes = QUANTISED_SIZES + 1 if sizes == QUANTISED_SIZES else sizes
    if arch == "mimo2" and cache in QUANTISED_CACHES:
        cache = None  # its values are 16 wide, which is not a block
    if arch == "plm":
        # The engine's graph does not fit its own cache with flash attention.
        cache, flash_attn = None if cache in QUANTISED_CACHES else cache, False
    if cache in QUANTISED_CACHES:
        # Values of blocks need flash attention, and heads of whole blocks.
        flash_attn, n_head = True, 2
    if arch not in LATENT:
        sizes = 0
    elif cache in QUANTISED_CACHES or not (sizes or arch in TOYS):
        sizes = QUANTISED_SIZES
    if sizes:
        quantised = ""
    return replace(
        opened, sizes=sizes, n_head=n_head, quantised=quantised, cache=cache, flash_attn=flash_attn
    )  # fmt: skip


def openings(archs: Sequence[str], n_threads: Sequence[int]) -> st.SearchStrategy[Opened]:
    """Every way to open a model of these architectures that its text is a function of."""
    return st.builds(
        Opened,
        arch=st.sampled_from(archs),
        sizes=st.integers(0, _MAX_SIZES),
        n_head=st.sampled_from((4, 4, 4, 2)),
        output_scale=st.sampled_from((3.0, 1.0, 16.0)),
        ends=st.booleans(),
        quantised=st.sampled_from(("", "", "", "Q8_0", "Q4_0")),
        n_ctx=st.integers(24, 160),
        n_batch=st.sampled_from((64, 33, 32, 17, 8, 3, 1, 512)),
        n_ubatch=st.sampled_from((32, 8, 4, 5, 1, 2, 16, 31, 33, 64, 512)),
        n_threads=st.sampled_from(n_threads),
        flash_attn=st.sampled_from((None, True, False)),
        cache=st.sampled_from((None, None, None, "f32", "bf16", *QUANTISED_CACHES)),
        swa_full=st.booleans(),
        n_parallel=st.sampled_from((1, 1, 1, 2, 3)),
        store=st.sampled_from((None, None, 0, 100_000)),
    ).map(_fitting)


def draftings() -> st.SearchStrategy[Drafting]:
    """Every kind of drafter and of controller."""
    return st.builds(
        Drafting,
        kind=st.sampled_from(DRAFTERS),
        n_draft=st.sampled_from((8, 1, 2, 3, 5, 13, 20, 31, 40, None)),
        controller=st.sampled_from(("fixed",) * 5 + ("random",) * 3 + CONTROLLERS),
        lookup=st.sampled_from((None, 0, 2)),
        seed=st.integers(0, 99),
    )


_TAILS = st.lists(st.integers(0, 319) | st.integers(97, 104), min_size=1, max_size=9).map(tuple)
# Of any bytes, since drawing tokens one by one takes as long as computing them.
_LONG_TAILS = st.binary(min_size=10, max_size=48).map(tuple)


# Options beside the common ones, and values of theirs.
_OPTIONS: dict[str, tuple[Any, ...]] = {
    "top_k": (0, 1, 5), "top_p": (0.5, 1.0), "min_p": (0.0, 0.3), "typical_p": (0.6,),
    "top_n_sigma": (1.0,), "repeat_penalty": (1.3, 0.8), "presence_penalty": (0.7,),
    "frequency_penalty": (0.4, -0.5), "penalty_last_n": (0, 3, -1), "penalize_prompt": (True,),
    "dry_multiplier": (0.8,), "xtc_probability": (0.5,), "mirostat_mode": (1, 2),
    "stop": ("a", ("e", "the"), " ", ("q", "\ufffd")),
    "logit_bias": (((EOS, 6.0),), ((97, 9.0), (98, -50.0)), ((101, 12.0),)),
    "grammar": GRAMMARS, "response_format": tuple(FORMATS),
}  # fmt: skip
_CHOICES = [(name, value) for name, values in _OPTIONS.items() for value in values]


@st.composite
def _options(draw: st.DrawFn) -> tuple[tuple[str, Any], ...]:
    n_tokens = draw(st.sampled_from((12, 1, 2, 7, 20, 33, 0, None)))
    chosen = {"max_tokens": n_tokens, "temperature": draw(st.sampled_from((0.0, 0.7, 1.5, 0.2)))}
    if chosen["temperature"]:
        chosen["seed"] = draw(st.integers(0, 999))
    logprobs = draw(st.sampled_from((None, None, 0, 3, 20)))
    if logprobs is not None:
        chosen["logprobs"] = logprobs
    chosen.update(draw(st.lists(st.sampled_from(_CHOICES), max_size=4)))
    if "grammar" in chosen:
        chosen.pop("response_format", None)
    return tuple(chosen.items())


def asks(fates: Sequence[str] = FATES) -> st.SearchStrategy[Ask]:
    return st.builds(
        Ask,
        tail=st.one_of(_TAILS, _TAILS, _LONG_TAILS),
        base=st.sampled_from((None, 0, 1, 2)),
        n_base=st.integers(0, 80),
        options=_options(),
        fate=st.sampled_from(("whole",) * 6 + tuple(fates)),
        at=st.integers(0, 8),
        face=st.sampled_from(("steps", "steps", "completion", "echo", "stream")),
        adapted=st.sampled_from((False, False, False, True)),
    )


def _acts(n_parallel: int) -> st.SearchStrategy[Any]:
    others: list[st.SearchStrategy[Any]] = [
        st.sampled_from(("save", "load", "reset", "on", "off", "move", "cache")).map(Act)
    ]
    if n_parallel > 1:
        several = st.lists(asks(("raises", "stops", "closed", "aborted")), min_size=2, max_size=4)
        others += [several.map(lambda some: Together(tuple(some)))] * 2
    return st.one_of(asks(), asks(), asks(), *others)


@st.composite
def sessions(
    draw: st.DrawFn, archs: Sequence[str] = ARCHS, n_threads: Sequence[int] = (1,)
) -> Session:
    """Sessions of one to five acts; the first is a request."""
    drafting = draw(draftings())
    if drafting.kind in ("mtp", "certain-mtp"):
        archs = [arch for arch in archs if arch in HEADS] or archs
    opened = draw(openings(archs, n_threads))
    rest = draw(st.lists(_acts(opened.n_parallel), max_size=4))
    return Session(opened, drafting, (draw(asks()), *rest))
