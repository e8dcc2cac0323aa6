"""DFlash drafts whose files say what cannot be: each is refused, and the key or tensor is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pyllama_spec import Llama
from pyllama_spec.errors import ArgumentError, ModelLoadError, PyllamaSpecError
from tests.models.dflash import DFlashConfig, dflash_tensors, write_dflash

from .harness import CaseList
from .tools import tiny

CASES = CaseList()

Tensors = dict[str, Any]
Change = Callable[[Tensors], object]
_KINDS: dict[str, dict[str, Any]] = {
    "dflash": {},
    "dflash2": {"variant": "dflash2"},
    "dspark": {"variant": "dspark"},
}
_MASK = "tokenizer.ggml.mask_token_id"


def _draft(
    folder: Path, change: Change | None = None, keys: dict[str, Any] | None = None, **options: Any
) -> Path:
    """A draft for the small llama, with a fault."""
    cfg = DFlashConfig(**{"target_layers": (0, 1, 2), **options})
    tensors = dflash_tensors(cfg)
    if change is not None:
        change(tensors)
    own = {
        name if name.startswith("tokenizer") else f"dflash.{name}": value
        for name, value in (keys or {}).items()
    }
    return write_dflash(folder / "draft.gguf", cfg, tensors, own)


def _text(draft: Path | None) -> tuple[str, dict[str, Any]]:
    """The text generated with it, and the drafter's state."""
    # In every round, whether it pays or not.
    always: dict[str, Any] = {"draft": draft, "lookup": 0, "controller": "fixed"}
    own = {} if draft is None else always
    with Llama(tiny(), n_ctx=64, n_threads=1, **own) as llm:
        result = llm.create_completion([72, 101, 108], max_tokens=12, temperature=0)
        text: str = result["choices"][0]["text"]
        return text, dict(result.get("speculation") or {})


def _use(
    change: Change | None = None, keys: dict[str, Any] | None = None, **options: Any
) -> Callable[[Path], object]:
    return lambda folder: _text(_draft(folder, change, keys, **options))


def _key(name: str, value: Any, kind: str = "dflash", **options: Any) -> Callable[[Path], object]:
    return _use(None, {name: value}, **_KINDS[kind], **options)


def _put(name: str, *shape: int) -> Change:
    """A tensor of another shape, or one more."""
    return lambda tensors: tensors.update({name: np.ones(shape, np.float32)})


@CASES.add(None)
def sound_drafts(folder: Path) -> None:
    """The sound drafts that the cases below change."""
    for options in (*_KINDS.values(), {"n_draft_vocab": 100}, {"sliding_window": 8}):
        text, stats = _text(_draft(folder, **options))
        assert text == _text(None)[0]
        assert stats["reason_off"] is None
        assert stats["drafted"] > 0


_BLOCK = "dflash.block_size is"
CASES.table(
    "block",
    {
        "missing": (_key("block_size", None), ModelLoadError, f"{_BLOCK} missing"),
        "0": (_key("block_size", 0), ModelLoadError, f"{_BLOCK} 0"),
        "1": (_key("block_size", 1), ModelLoadError, f"{_BLOCK} 1"),
        "1_dflash2": (_key("block_size", 1, "dflash2"), ModelLoadError, f"{_BLOCK} 1"),
        "1_no_anchor": (
            _key("block_size", 1, "dspark", sample_from_anchor=False), ModelLoadError,
            f"{_BLOCK} 1",
        ),
        "1025": (_key("block_size", 1025), ModelLoadError, f"{_BLOCK} 1025"),
        "huge": (_key("block_size", 2**32 - 1), ModelLoadError, f"{_BLOCK} 4294967295"),
        "of_a_chain": (_key("block_size", 33, "dspark"), ModelLoadError, f"{_BLOCK} 33"),
        "text": (_key("block_size", "six"), ModelLoadError, "dflash.block_size"),
        "float": (_key("block_size", 6.0), ModelLoadError, "dflash.block_size"),
        "list": (_key("block_size", [6, 6]), ModelLoadError, "dflash.block_size"),
        "causal_text": (_key("attention.causal", "no"), ModelLoadError, "dflash.attention.causal"),
        "causal_int": (_key("attention.causal", 1), ModelLoadError, "dflash.attention.causal"),
        "anchor_int": (
            _key("sample_from_anchor", 1, "dspark"), ModelLoadError, "dflash.sample_from_anchor",
        ),
        "anchor_of_a_selector": (
            _key("sample_from_anchor", True, "dflash2"), ModelLoadError, "samples from the anchor",
        ),
        "mask_missing": (_use(mask_token=None), ModelLoadError, f"{_MASK} is missing"),
        "mask_past_the_last": (_use(mask_token=320), ModelLoadError, _MASK),
        "mask_2_31": (_use(mask_token=2**31), ModelLoadError, _MASK),
        "mask_2_32": (_use(mask_token=2**32 - 1), ModelLoadError, _MASK),
        "mask_text": (_use(None, {_MASK: "<mask>"}, mask_token=None), ModelLoadError, _MASK),
        "mask_list": (_use(None, {_MASK: [3]}, mask_token=None), ModelLoadError, _MASK),
    },
)  # fmt: skip

_LAYERS = "dflash.target_layers"
CASES.table(
    "layers",
    {
        "missing": (_key("target_layers", None), ModelLoadError, f"{_LAYERS} is missing"),
        "twice": (_key("target_layers", [1, 2, 1]), ModelLoadError, f"{_LAYERS} has 1 twice"),
        "negative": (_key("target_layers", [-1, 1, 2]), ModelLoadError, f"{_LAYERS} has -1"),
        "huge": (_key("target_layers", [0, 1, 99_999]), ModelLoadError, f"{_LAYERS} has 99999"),
        "text": (_key("target_layers", "0,1,2"), ModelLoadError, _LAYERS),
        "texts": (_key("target_layers", ["0", "1", "2"]), ModelLoadError, _LAYERS),
        "number": (_key("target_layers", 1), ModelLoadError, _LAYERS),
        "one_more": (_key("target_layers", [0, 1, 2, 3]), ModelLoadError, "fc.weight"),
        "not_of_the_target": (_use(target_layers=(0, 1, 3)), ArgumentError, "layer 3"),
    },
)


def _d2t(value: Any) -> Change:
    return lambda tensors: tensors.update({"d2t": np.asarray(value)})


_REDUCED: dict[str, Any] = {"n_draft_vocab": 100}
CASES.table(
    "ids",
    {
        "past_the_last": (
            _use(_d2t(np.arange(221, 321)), **_REDUCED), PyllamaSpecError, "d2t[99] = 320",
        ),
        "negative": (_use(_d2t(np.arange(-1, 99)), **_REDUCED), PyllamaSpecError, "d2t[0] = -1"),
        "twice": (
            _use(_d2t(np.zeros(100, np.int64)), **_REDUCED), PyllamaSpecError, "target id 0 twice",
        ),
        "floats": (
            _use(_d2t(np.arange(100, dtype=np.float32)), **_REDUCED), ModelLoadError, "d2t is f32",
        ),
        "int32": (
            _use(_d2t(np.arange(100, dtype=np.int32)), **_REDUCED), ModelLoadError, "d2t is i32",
        ),
        "too_many": (_use(_d2t(np.arange(500))), ModelLoadError, "d2t has 500 entries"),
        "too_few": (_use(_d2t(np.arange(99)), **_REDUCED), ModelLoadError, "output.weight"),
        "matrix": (
            _use(_d2t(np.arange(100).reshape(10, 10)), **_REDUCED), ModelLoadError, "d2t",
        ),
        "without_output": (
            _use(lambda t: t.pop("output.weight"), **_REDUCED), ModelLoadError,
            "d2t but no output.weight",
        ),
        "output_without_them": (
            _use(lambda t: t.pop("d2t"), **_REDUCED), ModelLoadError, "output.weight",
        ),
        "embedding_without_output": (
            _use(lambda t: t.pop("output.weight")), ModelLoadError,
            "token_embd.weight but no output.weight",
        ),
    },
)  # fmt: skip


def _without(name: str) -> Change:
    return lambda tensors: tensors.pop(name)


# What says that there is a head: without it the rest of the head belongs to nothing.
_MARKS = {"markov_w1.weight", "selector_hidden.weight"}
_OPTIONAL = {
    "token_embd.weight",
    "output.weight",
    "blk.0.attn_v.weight",
    "conf_proj.bias",
    "conf_proj.weight",
}
for _kind, _options in _KINDS.items():
    _all = dflash_tensors(DFlashConfig(target_layers=(0, 1, 2), **_options))
    _once = [name for name in _all if not name.startswith("blk.1.")]
    CASES.table(
        f"{_kind}_without",
        {
            name: (
                _use(_without(name), **_options),
                ModelLoadError,
                "does not belong" if name in _MARKS else name,
            )
            for name in _once
            if name not in _OPTIONAL
        },
    )
    CASES.table(
        f"{_kind}_shape",
        {
            name: (
                _use(_put(name, *(size + 1 for size in _all[name].shape)), **_options),
                ModelLoadError, name.removesuffix(".weight").removesuffix(".bias"),
            )
            for name in _once
        },
    )  # fmt: skip

CASES.table(
    "more",
    {
        "layer": (_use(_put("blk.2.attn_norm.weight", 64)), ModelLoadError, "blk.2.attn_norm"),
        "unknown": (_use(_put("blk.0.attn_gate.weight", 64)), ModelLoadError, "attn_gate"),
        "d2t_like": (_use(_put("t2d", 320)), ModelLoadError, "t2d"),
        "markov_w2": (_use(_put("markov_w2.weight", 320, 12)), ModelLoadError, "markov_w2"),
        "confidence": (_use(_put("conf_proj.weight", 1, 76)), ModelLoadError, "conf_proj"),
        "convolution": (
            _use(_put("blk.0.attn_conv_base", 2, 2, 64)), ModelLoadError, "attn_conv_base",
        ),
        "both_heads": (
            _use(
                lambda t: t.update(
                    {name: np.ones((320, 12), np.float32) for name in ("markov_w1.weight",)}
                ),
                **_KINDS["dflash2"],
            ),
            ModelLoadError, "markov",
        ),
    },
)  # fmt: skip

CASES.table(
    "selector",
    {
        **{
            f"{name}_{value}": (
                _key(name, value, "dflash2"), ModelLoadError, name.partition("_")[2] or name,
            )
            for name in ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
            for value in (None, 0, 2**31, "two")
        },
        "group_of_7": (_key("conv_group_size", 7, "dflash2"), ModelLoadError, "group_size is 7"),
        "group_too_wide": (
            _key("conv_group_size", 128, "dflash2"), ModelLoadError, "conv_group_size is 128",
        ),
        "kernel_of_3": (_key("conv_kernel_size", 3, "dflash2"), ModelLoadError, "conv_base"),
        "rank_9": (_key("selector_rank", 9, "dflash2"), ModelLoadError, "selector_"),
        "top_65": (_key("selector_top_k", 65, "dflash2"), ModelLoadError, "selector_top_k is 65"),
        "top_of_too_few": (
            _key("selector_top_k", 9, "dflash2", n_draft_vocab=8), ModelLoadError,
            "selector_top_k is 9",
        ),
    },
)  # fmt: skip

_WINDOW: dict[str, Any] = {"sliding_window": 8}
_PATTERN = "attention.sliding_window_pattern"
CASES.table(
    "sizes",
    {
        **{
            f"{name}_{value}": (_key(name, value), PyllamaSpecError, named)
            for name, value, named in (
                ("attention.head_count", 0, "head_count"),
                ("attention.head_count", None, "head_count"),
                ("attention.head_count", 2**31, "attn_q"),
                ("attention.head_count", "four", "head_count"),
                ("attention.head_count_kv", 0, "head_count_kv"),
                ("attention.head_count_kv", 3, "attn_k"),
                ("attention.head_count_kv", "two", "head_count_kv"),
                ("attention.key_length", 0, ""),
                ("attention.key_length", 2**31, ""),
                ("attention.key_length", 8, "key_length and value_length differ"),
                ("attention.layer_norm_rms_epsilon", None, "layer_norm_rms_epsilon"),
                ("block_count", 0, ""),
                ("block_count", 3, "blk.2"),
                ("block_count", 10**6, ""),
                ("block_count", "two", "block_count"),
                ("embedding_length", 0, ""),
                ("embedding_length", 32, ""),
                ("embedding_length", 2**31, ""),
                ("feed_forward_length", 0, ""),
                ("feed_forward_length", 77, "ffn_gate"),
                ("rope.dimension_count", 0, ""),
                ("rope.dimension_count", 7, "7"),
                ("rope.dimension_count", 64, ""),
                ("rope.dimension_count", 2**31, ""),
                ("rope.dimension_sections", [99, 1, 1, 0], "sections"),
                ("rope.dimension_sections", "ab", "dimension_sections"),
                ("hidden_activation", "relu", "'relu'"),
                ("hidden_activation", 3, "hidden_activation"),
                ("embedding_scale", "x", "embedding_scale"),
                ("hyper_connection.count", 4, "hyper_connection.count"),
            )
        },
        "window_without_pattern": (
            _use(None, {_PATTERN: None}, **_WINDOW), ModelLoadError, "sliding_window_pattern",
        ),
        "pattern_too_short": (
            _use(None, {_PATTERN: [True]}, **_WINDOW), ModelLoadError, "sliding_window_pattern",
        ),
        "pattern_one_too_long": (
            _use(None, {_PATTERN: [True] * 3}, **_WINDOW), ModelLoadError, "sliding_window_pattern",
        ),
        "pattern_too_long": (
            _use(None, {_PATTERN: [True] * 600}, **_WINDOW), ModelLoadError, "pattern",
        ),
        "pattern_of_texts": (
            _use(None, {_PATTERN: ["a", "b"]}, **_WINDOW), ModelLoadError, "sliding_window_pattern",
        ),
        "window_text": (
            _use(None, {"attention.sliding_window": "x"}), ModelLoadError, "sliding_window",
        ),
    },
)  # fmt: skip


def _nan(name: str, kind: str, **options: Any) -> Callable[[Path], None]:
    """Drafts are off with a reason, and the text is what it is without."""

    def run(folder: Path) -> None:
        def spoil(tensors: Tensors) -> None:
            tensors[name][:] = np.nan

        text, stats = _text(_draft(folder, spoil, **_KINDS[kind], **options))
        assert text == _text(None)[0]
        assert "NaN" in str(stats["reason_off"]), stats

    return run


CASES.table(
    "nan",
    {
        f"{kind}_{name}": (_nan(name, kind), None, "")
        for kind, names in {
            "dflash": ["fc.weight", "output_norm.weight", "token_embd.weight", "output.weight",
                       "blk.0.attn_k.weight", "blk.1.ffn_down.weight"],
            "dflash2": ["fc.weight", "output.weight", "selector_hidden.weight",
                        "selector_predecessor.weight", "blk.0.attn_conv_base"],
            "dspark": ["fc.weight", "output.weight", "markov_w1.weight", "markov_w2.weight",
                       "conf_proj.weight"],
        }.items()
        for name in names
    },
)  # fmt: skip


def _scale(name: str, value: float) -> Callable[[Path], None]:
    """A number that makes nonsense of drafts: the text is right all the same."""

    def run(folder: Path) -> None:
        assert _text(_draft(folder, None, {name: value}))[0] == _text(None)[0]

    return run


CASES.table(
    "nonsense",
    {
        f"{name}_{value}": (_scale(name, value), None, "")
        for name in (
            "embedding_scale", "logit_scale", "attention.scale", "final_logit_softcapping",
            "rope.freq_base",
        )
        for value in (float("nan"), float("inf"), -1.0, 1e30)
    },
)  # fmt: skip
