"""DFlash drafts whose files say what cannot be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pyllama_spec import Llama
from pyllama_spec.errors import ArgumentError, ModelLoadError, PyllamaSpecError
from tests.models.dflash import DFlashConfig, dflash_tensors, write_dflash

from .harness import Case, CaseList
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


def _refused(prefix: str, kind: type[PyllamaSpecError], rows: dict[str, Any]) -> None:
    """A case for each value of a key, which the error names: "key" or "key of KIND"."""
    for key, values in rows.items():
        name, _, variant = key.partition(" of ")
        for i, value in enumerate(values if isinstance(values, tuple) else (values,)):
            call = _key(name, value, variant or "dflash")
            CASES.append(Case(f"{prefix}_{key}_{i}", call, kind, name.partition("_top")[0]))


_refused("key", ModelLoadError, {
    "block_size": (None, 0, 1, 1025, "six", [6, 6]),
    "block_size of dflash2": 1, "block_size of dspark": 33,
    "attention.causal": ("no", 1), "sample_from_anchor of dspark": 1,
    "target_layers": (None, [1, 2, 1], [-1, 1, 2], [0, 1, 99_999], "0,1,2", 1),
    "conv_kernel_size of dflash2": (None, 0, 2**31), "conv_group_size of dflash2": (0, "two", 7),
    "selector_rank of dflash2": (0, 2**31), "selector_top_k of dflash2": (None, 0, "two", 65),
    "attention.head_count": ([4, 8], 0, None, "four"), "attention.head_count_kv": ([2, 4], 0),
    "attention.layer_norm_rms_epsilon": None, "block_count": "two",
    "feed_forward_length": ([96, 64],),
    "rope.dimension_sections": "ab", "hidden_activation": 3, "embedding_scale": "x",
    "hyper_connection.count": 4, "attention.sliding_window": "x",
})  # fmt: skip
# What contradicts a tensor, or another key: it is the other one that is named.
CASES.calls("size", PyllamaSpecError, {
    f"{name}_{value}": _key(name, value, kind)
    for name, value, kind in (
        ("attention.head_count", 2**31, "dflash"), ("attention.head_count_kv", 3, "dflash"),
        ("attention.key_length", 0, "dflash"), ("attention.key_length", 2**31, "dflash"),
        ("attention.key_length", 8, "dflash"), ("block_count", 0, "dflash"),
        ("block_count", 3, "dflash"), ("block_count", 10**6, "dflash"),
        ("embedding_length", 0, "dflash"), ("embedding_length", 32, "dflash"),
        ("embedding_length", 2**31, "dflash"), ("feed_forward_length", 0, "dflash"),
        ("feed_forward_length", 77, "dflash"), ("rope.dimension_count", 0, "dflash"),
        ("rope.dimension_count", 64, "dflash"), ("rope.dimension_count", 7, "dflash"),
        ("hidden_activation", "relu", "dflash"), ("rope.dimension_count", 2**31, "dflash"),
        ("rope.dimension_sections", [99, 1, 1, 0], "dflash"),
        ("target_layers", [0, 1, 2, 3], "dflash"), ("sample_from_anchor", True, "dflash2"),
        ("conv_kernel_size", 3, "dflash2"), ("selector_rank", 9, "dflash2"),
    )
})  # fmt: skip
_WINDOW: dict[str, Any] = {"sliding_window": 8}
_PATTERN = "attention.sliding_window_pattern"
CASES.calls("together", ModelLoadError, {
    **{f"mask_{mask}": _use(mask_token=mask) for mask in (None, 320, 2**31, 2**32 - 1)},
    **{f"mask_{mask}": _use(None, {_MASK: mask}, mask_token=None) for mask in ("<mask>", [3])},
    **{f"pattern_{i}": _use(None, {_PATTERN: value}, **_WINDOW)
       for i, value in enumerate((None, [True], [True] * 3, [True] * 600, ["a", "b"]))},
    "no_anchor": _key("block_size", 1, "dspark", sample_from_anchor=False),
    "top_of_too_few": _key("selector_top_k", 9, "dflash2", n_draft_vocab=8),
    "window_2_31": _key("attention.sliding_window", 2**31, sliding_window=8),
})  # fmt: skip
CASES.calls("layers", ArgumentError, {"not_of_the_target": _use(target_layers=(0, 1, 3))})


def _d2t(value: Any) -> Change:
    return lambda tensors: tensors.update({"d2t": np.asarray(value)})


def _as_type(name: str, kind: Any) -> Change:
    return lambda tensors: tensors.update({name: tensors[name].astype(kind)})


def _without(name: str) -> Change:
    return lambda tensors: tensors.pop(name)


_REDUCED: dict[str, Any] = {"n_draft_vocab": 100}
CASES.calls("ids", PyllamaSpecError, {
    **{f"d2t_{i}": _use(_d2t(value), **_REDUCED) for i, value in enumerate((
        np.arange(221, 321), np.arange(-1, 99), np.zeros(100, np.int64), np.arange(99),
        np.arange(100, dtype=np.float32), np.arange(100, dtype=np.int32),
        np.arange(100).reshape(10, 10),
    ))},
    "too_many": _use(_d2t(np.arange(500))),
    "without_output": _use(_without("output.weight"), **_REDUCED),
    "output_without_them": _use(_without("d2t"), **_REDUCED),
    "embedding_without_output": _use(_without("output.weight")),
})  # fmt: skip

# What says that there is a head: without it the rest of the head belongs to nothing.
_MARKS = {"markov_w1.weight", "selector_hidden.weight"}
_OPTIONAL = {
    "token_embd.weight", "output.weight", "blk.0.attn_v.weight", "conf_proj.bias",
    "conf_proj.weight",
}  # fmt: skip
_SEEN: set[str] = set()
for _kind, _options in _KINDS.items():
    _all = dflash_tensors(DFlashConfig(target_layers=(0, 1, 2), **_options))
    for _name in (name for name in _all if not name.startswith("blk.1.") and name not in _SEEN):
        _short = _name.removesuffix(".weight").removesuffix(".bias")
        if _name not in _OPTIONAL:
            _call = _use(_without(_name), **_options)
            _named = "" if _name in _MARKS else _short
            CASES.append(Case(f"{_kind}_without_{_name}", _call, ModelLoadError, _named))
        _wrong = _use(_put(_name, *(size + 1 for size in _all[_name].shape)), **_options)
        CASES.append(Case(f"{_kind}_shape_{_name}", _wrong, ModelLoadError, _short))
    _SEEN |= _all.keys()

CASES.calls("tensor", ModelLoadError, {
    **{name: _use(_put(name, *shape)) for name, shape in {
        "blk.2.attn_norm.weight": (64,), "blk.0.attn_gate.weight": (64,), "t2d": (320,),
        "markov_w2.weight": (320, 12), "conf_proj.weight": (1, 76),
        "blk.0.attn_conv_base": (2, 2, 64),
    }.items()},
    "both_heads": _use(_put("markov_w1.weight", 320, 12), **_KINDS["dflash2"]),
    "integer_weights": _use(_as_type("fc.weight", np.int32)),
    "double_weights": _use(_as_type("fc.weight", np.float64)),
    "half_norm": _use(_as_type("enc.output_norm.weight", np.float16)),
})  # fmt: skip


def _nan(name: str, kind: str, **options: Any) -> Callable[[Path], None]:
    """Drafts are off with a reason, and the text is what it is without."""

    def run(folder: Path) -> None:
        def spoil(tensors: Tensors) -> None:
            tensors[name][:] = np.nan

        text, stats = _text(_draft(folder, spoil, **_KINDS[kind], **options))
        assert text == _text(None)[0]
        assert "NaN" in str(stats["reason_off"]), stats

    return run


CASES.calls(
    "nan", None,
    {
        f"{kind}_{name}": _nan(name, kind)
        for kind, names in {
            "dflash": ["fc.weight", "output.weight", "blk.0.attn_k.weight"],
            "dflash2": ["selector_hidden.weight", "blk.0.attn_conv_base"],
            "dspark": ["markov_w1.weight", "conf_proj.weight"],
        }.items()
        for name in names
    },
)  # fmt: skip
