"""Finds a DFlash draft's options in config.json.

z-lab's files have some in dflash_config and some at the top, SpecForge's likewise, RadixArk's have
a dspark_config as well, DeepSpec's have all at the top, and speculators' have the draft's at the
top and the decoder's in transformer_layer_config. An option in two places must have the
same value in both.
"""

from __future__ import annotations

import re
from typing import Any

from pyllama_spec.convert.fields import Fields
from pyllama_spec.errors import ConversionError

INNER = ("dflash_config", "dspark_config")
# Options that are read somewhere in this folder.
_READ = {
    "attention_mode", "attention_sink_bias", "attention_value_scale", "block_size", "causal",
    "confidence_head_with_markov", "conv_group_size", "conv_kernel_size", "enable_confidence_head",
    "final_logit_softcapping", "input_embedding_scale", "markov_head_type", "markov_rank",
    "mask_token_id", "num_target_layers", "output_multiplier", "projector_type",
    "sample_from_anchor", "selector_rank", "selector_top_k", "selector_vocab_size",
    "swa_window_size", "target_layer_ids", "use_aux_hidden_state", "use_qk_norm", "use_swa",
}  # fmt: skip
# Options for training, the target or readers that change no layer of the draft.
_IGNORED = {
    "backbone_rotary_base", "confidence_head_alpha", "loss_decay_gamma", "mask_token",
    "num_anchors",
}  # fmt: skip
_TOP_OF_SPECULATORS = {
    "architectures", "auto_map", "aux_hidden_state_layer_ids", "draft_vocab_size", "dtype",
    "layer_types", "max_anchors", "max_window_layers", "model_type", "sliding_window",
    "sliding_window_non_causal", "speculators_config", "speculators_model_type",
    "speculators_version", "target_hidden_size", "tie_word_embeddings", "torch_dtype",
    "transformer_layer_config", "transformers_version", "use_sliding_window",
}  # fmt: skip
# At the top of a flat config.json, between hundreds of keys of transformers, what belongs to a
# draft is told by its name.
_DRAFTS_OWN = re.compile(
    r"^(anchor|block|candidate|confidence|conv|dflash|dfly|domino|draft|dspark|fc|gating|hidden"
    r"_correction|markov|mask|modality|projector|sample_from|selector|target_layer)(_|$)"
)
_FLAT = {"draft_vocab_size", "markov_head_type", *INNER}


class Options:
    """The options, wherever they are in config.json."""

    def __init__(self, top: Fields, body: Fields, is_speculators: bool) -> None:
        inner = [fields for key in INNER if (fields := top.inner(key)).values]
        self._places = (*inner, top) if top is body else (*inner, top, body)
        for place in inner:
            self._check(place, _READ | _IGNORED)
        if is_speculators:
            self._check(top, _READ | _IGNORED | _TOP_OF_SPECULATORS)
        else:
            own = {key for key in top.values if _DRAFTS_OWN.match(key)}
            self._check(Fields({key: top.values[key] for key in own}), _READ | _IGNORED | _FLAT)

    @staticmethod
    def _check(place: Fields, known: set[str]) -> None:
        """Refuses an unknown option that is on."""
        for key in sorted(place.values.keys() - known):
            value = place.values[key]
            if value in (None, False, "", [], {}) or key.startswith("_"):
                continue
            raise ConversionError(
                f"config.json: {place.where}{key} is {value!r}: this converter does not know its "
                "meaning"
            )

    def has(self, key: str) -> bool:
        """Whether the option is set anywhere."""
        return any(place.has(key) for place in self._places)

    def at(self, key: str) -> Fields:
        """The object that holds the option; the first object if none does."""
        holders = [place for place in self._places if place.has(key)]
        for other in holders[1:]:
            if other.values[key] != holders[0].values[key]:
                raise ConversionError(
                    f"config.json: {holders[0].where}{key} is {holders[0].values[key]!r} and "
                    f"{other.where}{key} is {other.values[key]!r}"
                )
        return holders[0] if holders else self._places[0]

    def refuse(self, key: str, why: str) -> ConversionError:
        """The error for an option that is not supported."""
        place = self.at(key)
        return ConversionError(
            f"config.json: {place.where}{key} is {place.values.get(key)!r}: {why}"
        )

    def value(self, key: str) -> Any:
        """The value of the option; None if it is not set."""
        return self.at(key).values.get(key)
