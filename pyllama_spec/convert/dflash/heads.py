"""The heads after a DFlash draft's layers: DSpark's Markov and confidence head, DFlash2's selector.

A draft that samples from its anchor predicts in slot i what follows slot i; the others predict in
slot i > 0 what belongs into slot i, and nothing in slot 0. One off is invisible but in acceptance.

    DeepSpec, SpecForge with a Markov head     from the anchor, unless sample_from_anchor says else
    DeepSpec without a Markov head             from the anchor too
    z-lab, SpecForge without one               not from the anchor
    speculators                                sample_from_anchor; without the key DFlash does not,
                                               and of DSpark both exist (ggml-org/llama.cpp pull
                                               request 26275, sgl-project/sglang 30982)
"""

from __future__ import annotations

from dataclasses import dataclass

from pyllama_spec.convert.checkpoint_tensors import CheckpointTensors
from pyllama_spec.convert.dflash.options import Options
from pyllama_spec.errors import ConversionError

W1, W2 = "markov_head.markov_w1.weight", "markov_head.markov_w2.weight"
CONFIDENCE = "confidence_head.proj.weight"
SELECTOR = "candidate_selector.hidden_projection.weight"
_SELECTOR_KEYS = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")


@dataclass(frozen=True, slots=True)
class Heads:
    """The optional heads of a checkpoint.

    Attributes:
        markov_rank: None without a Markov head.
        has_confidence: whether there is a confidence head.
        sample_from_anchor: whether slot 0 predicts.
        selector: conv_kernel_size, conv_group_size, selector_rank and selector_top_k of DFlash2;
            empty if there is no selector.
        notes: remarks for the user.
    """

    markov_rank: int | None
    has_confidence: bool
    sample_from_anchor: bool
    selector: dict[str, int]
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        """The kind of draft."""
        if self.selector:
            return "DFlash2"
        return "DFlash" if self.markov_rank is None else "DSpark"

    @property
    def keys(self) -> dict[str, object]:
        """The GGUF's keys, without the architecture in front."""
        if self.markov_rank is None:
            anchor = {"sample_from_anchor": True} if self.sample_from_anchor else {}
            return {**self.selector, **anchor}
        return {
            "sample_from_anchor": self.sample_from_anchor,
            "has_confidence_head": self.has_confidence,
        }


def read_heads(
    options: Options, tensors: CheckpointTensors, is_speculators: bool, n_embd: int
) -> Heads:
    """Reads the heads from config.json and the tensors, which must agree."""
    selector = _selector(options, tensors, n_embd)
    rank = _markov_rank(options, tensors)
    if selector and rank is not None:
        raise ConversionError(
            "the draft has a selector and a Markov head, and the engine computes only one of them"
        )
    has_confidence, notes = _confidence(options, tensors, rank)
    anchor = _sample_from_anchor(options, rank, is_speculators)
    return Heads(rank, has_confidence, anchor, selector, notes)


def _selector(options: Options, tensors: CheckpointTensors, n_embd: int) -> dict[str, int]:
    if tensors.find(SELECTOR) is None:
        if key := next((key for key in _SELECTOR_KEYS if options.has(key)), None):
            raise options.refuse(key, f"the tensor {SELECTOR} is missing")
        return {}
    sizes = {key: options.at(key).size(key) for key in _SELECTOR_KEYS}
    group, top_k = sizes["conv_group_size"], sizes["selector_top_k"]
    if n_embd % group:
        raise options.refuse("conv_group_size", f"hidden_size {n_embd} is not a multiple of it")
    if n_embd < top_k * (top_k + 1):
        raise options.refuse(
            "selector_top_k", f"its scores do not fit into a row of {n_embd} numbers"
        )
    return sizes


def _markov_rank(options: Options, tensors: CheckpointTensors) -> int | None:
    place = options.at("markov_rank")
    rank = place.values.get("markov_rank")
    has_head = tensors.find(W1) is not None
    if not has_head and rank in (None, 0):
        return None
    if has_head and rank in (None, 0):
        raise place.fail("markov_rank", f"the rank of {W1}")
    kind = options.at("markov_head_type").values.get("markov_head_type", "vanilla")
    if kind not in (None, "vanilla"):
        raise options.refuse("markov_head_type", "the engine has 'vanilla' alone")
    return place.size("markov_rank")


def _confidence(
    options: Options, tensors: CheckpointTensors, rank: int | None
) -> tuple[bool, tuple[str, ...]]:
    key = "enable_confidence_head"
    is_asked = options.at(key).optional_flag(key)
    if tensors.find(CONFIDENCE) is None:
        missing = f"{key} is true, and the file has no confidence head"
        return False, (missing,) if is_asked else ()
    if is_asked is False:
        raise options.refuse(key, f"there is {CONFIDENCE}")
    if rank is None:
        raise ConversionError(
            f"there is {CONFIDENCE}, but no Markov head: the engine computes it only after one"
        )
    key = "confidence_head_with_markov"
    if options.at(key).optional_flag(key) is False:
        raise options.refuse(key, "the engine's confidence head reads the previous token as well")
    return True, ()


def _sample_from_anchor(options: Options, rank: int | None, is_speculators: bool) -> bool:
    key = "sample_from_anchor"
    declared = options.at(key).optional_flag(key)
    if rank is None:
        # DeepSpec's DFlash drafts have markov_rank 0, and are trained like its DSpark drafts.
        return options.has("markov_rank") if declared is None else declared
    if declared is None and is_speculators:
        raise ConversionError(
            f"config.json has no {key}: DSpark drafts of this layout exist with and without, and "
            "one read as the other is hardly ever accepted; write true or false into it (the "
            "model card knows; files of before July 2026 are false)"
        )
    return declared is not False
