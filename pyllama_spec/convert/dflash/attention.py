"""The attention masks of a DFlash draft's layers: the window, and causality within a block.

The injected rows come before every slot. Within the block a layer is causal or not:

    is_causal, or dflash_config.causal          that, in every layer
    speculators: sliding_window_non_causal      sliding layers are not causal where it is true
    none of them                                sliding layers are causal, full ones are not

The last line is how z-lab, vLLM, SGLang and SpecForge read it; SGLang measured 5.6 accepted tokens
for z-lab's gemma-4-31B draft with it and 5.3 without (sgl-project/sglang pull request 34524). The
engine has one mask for all layers, so a draft with both kinds of layers is computed without
causality, and its file says which layers want it.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyllama_spec.convert.dflash.options import Options
from pyllama_spec.errors import ConversionError

_FULL, _SLIDING = "full_attention", "sliding_attention"
# The model type with its own code, which has no use_sliding_window.
_MUSE = "muse_glimmer_assistant"


@dataclass(frozen=True, slots=True)
class Attention:
    """The attention masks of the layers.

    Attributes:
        window: the window of the sliding layers; None if no layer slides.
        is_sliding, is_causal: one value per layer.
    """

    window: int | None
    is_sliding: tuple[bool, ...]
    is_causal: tuple[bool, ...]

    @property
    def keys(self) -> dict[str, object]:
        """The GGUF's keys, without the architecture in front."""
        keys: dict[str, object] = {"attention.causal": all(self.is_causal)}
        if self.window is not None:
            keys["attention.sliding_window"] = self.window
            keys["attention.sliding_window_pattern"] = self.is_sliding
        if self.is_mixed:
            keys["attention.causal_pattern"] = self.is_causal
        return keys

    @property
    def is_mixed(self) -> bool:
        """Whether some layers are causal and others are not."""
        return len(set(self.is_causal)) > 1

    @property
    def notes(self) -> tuple[str, ...]:
        """The remarks for the user."""
        if not self.is_mixed:
            return ()
        note = (
            f"{sum(self.is_causal)} of {len(self.is_causal)} layers are causal within a block; "
            "stock llama.cpp reads the file as if none were, which costs some acceptance there"
        )
        return (note,)


def read_attention(options: Options, n_layer: int, is_speculators: bool) -> Attention:
    """Reads the masks."""
    kinds = _layer_types(options, n_layer)
    by_type = tuple(kind == _SLIDING for kind in kinds)
    use_sliding_window = options.at("use_sliding_window").optional_flag("use_sliding_window")
    is_muse = options.at("model_type").values.get("model_type") == _MUSE
    use_swa = options.at("use_swa").flag("use_swa")
    if any(by_type) and not (use_sliding_window or use_swa or is_muse):
        raise options.refuse(
            "use_sliding_window",
            "layer_types has sliding_attention, and readers disagree on what a window is then; "
            "say true or false for both in config.json",
        )
    if use_sliding_window and not any(by_type) and not use_swa and not options.has("layer_types"):
        raise options.refuse("use_sliding_window", "layer_types does not say in which layers")
    is_sliding = (True,) * n_layer if use_swa and not any(by_type) else by_type
    window = _window(options) if any(is_sliding) else None
    return Attention(window, is_sliding, _causal(options, by_type, is_speculators))


def _layer_types(options: Options, n_layer: int) -> list[str]:
    place = options.at("layer_types")
    kinds = place.values.get("layer_types")
    if kinds is None:
        return [_FULL] * n_layer
    if not isinstance(kinds, list) or len(kinds) != n_layer:
        raise place.fail("layer_types", f"a list of {n_layer} kinds, one per layer")
    if odd := sorted({str(kind) for kind in kinds} - {_FULL, _SLIDING}):
        raise ConversionError(
            f"config.json: {place.where}layer_types has {odd[0]!r}, which is not supported"
        )
    return kinds


def _window(options: Options) -> int:
    key = "swa_window_size" if options.has("swa_window_size") else "sliding_window"
    return options.at(key).size(key)


def _causal(options: Options, by_type: tuple[bool, ...], is_speculators: bool) -> tuple[bool, ...]:
    declared = [
        (key, value)
        for key in ("is_causal", "causal")
        if (value := options.at(key).optional_flag(key)) is not None
    ]
    if len({value for _, value in declared}) > 1:
        raise options.refuse("is_causal", f"causal is {declared[1][1]}")
    if declared:
        return (declared[0][1],) * len(by_type)
    key = "sliding_window_non_causal"
    if is_speculators and options.at(key).flag(key):
        return (False,) * len(by_type)
    return by_type
