"""An earlier draft to begin with: for more text than it saw, or for a target that was tuned since.

Its shape, its draft vocabulary and its weights are taken over, and its n-gram table goes on beside
what the new text counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyllama_spec.engine import Model, ModelInfo
from pyllama_spec.engine.model import NgramArrays
from pyllama_spec.errors import PyllamaSpecError
from pyllama_spec.gguf.reader import read_gguf
from pyllama_spec.gguf.values import read_floats, read_ids
from pyllama_spec.train.eagle3.head import HeadShape
from pyllama_spec.train.errors import TrainError, need
from pyllama_spec.train.files import hash_file

_TRAIN = "pyllama_spec.train."


@dataclass(frozen=True, slots=True)
class InitDraft:
    """What is taken over.

    Attributes:
        name: of the file.
        sha256: of the file.
        shape: of the head.
        d2t: [n_draft_vocab] int64, the target's id of each draft id.
        tensors: float32, by their names in the GGUF.
        ngrams: its table, if it has one.
        n_tokens: answer tokens that it has seen, and those before it, as far as its file says.
        n_text: different ones among them, likewise.

    """

    name: str
    sha256: str
    shape: HeadShape
    d2t: npt.NDArray[np.int64]
    tensors: Mapping[str, npt.NDArray[np.float32]]
    ngrams: NgramArrays | None
    n_tokens: int
    n_text: int


def read_init_draft(path: Path, target: ModelInfo) -> InitDraft:
    """Reads a draft that training can go on with: one that `train eagle3` wrote.

    Args:
        path: its GGUF.
        target: the sizes of what it is to draft for.

    Raises:
        TrainError: it is no head of one layer as training makes them, or of another size.
        ModelLoadError: it is missing or damaged.

    """
    need("gguf")
    with Model(path) as model:
        if model.info.arch != "eagle3":
            raise TrainError(f"{path.name} is a {model.info.arch}, not an EAGLE-3 draft")
        arrays = model.ngram_arrays()
    file = read_gguf(path, lambda name: name.startswith(("eagle3.", _TRAIN)))
    keys = {name: key.value for name, key in file.keys.items()}
    tensors = {
        name: read_floats(path, tensor)
        for name, tensor in file.tensors.items()
        if name != "d2t" and not name.startswith("ngram.")
    }
    d2t = read_ids(path, file.tensors["d2t"]) if "d2t" in file.tensors else np.zeros(0, np.int64)
    try:
        shape = _shape(keys, len(d2t))
    except (KeyError, TypeError, ValueError, PyllamaSpecError) as error:
        raise TrainError(_unlike(path, f"its keys do not say its sizes ({error})")) from None
    _check_target(path, shape, target)
    if not len(d2t) or (np.diff(d2t) <= 0).any() or d2t[0] < 0 or d2t[-1] >= target.n_vocab:
        raise TrainError(_unlike(path, "it has no d2t that rises within the target's vocabulary"))
    _check_tensors(path, shape, tensors)
    return InitDraft(
        path.name, hash_file(path), shape, d2t, tensors,
        arrays,
        _count(keys, "tokens") + _count(keys, "tokens_before"),
        _count(keys, "corpus_tokens") + _count(keys, "corpus_tokens_before"),
    )  # fmt: skip


def _shape(keys: Mapping[str, Any], n_draft_vocab: int) -> HeadShape:
    def number(name: str) -> int:
        return int(keys[f"eagle3.{name}"])

    if number("block_count") != 1:
        raise ValueError(f"{number('block_count')} layers instead of one")
    return HeadShape(
        n_vocab=number("vocab_size"),
        n_draft_vocab=n_draft_vocab,
        n_embd=number("embedding_length"),
        n_embd_target=number("target_hidden_size"),
        target_layers=tuple(int(layer) for layer in keys["eagle3.target_layers"]),
        n_head=number("attention.head_count"),
        n_head_kv=number("attention.head_count_kv"),
        n_ff=number("feed_forward_length"),
        fc_norm=bool(keys.get("eagle3.fc_norm", False)),
        norm_output=bool(keys.get("eagle3.norm_output", False)),
        rope_base=float(keys["eagle3.rope.freq_base"]),
        rms_eps=float(keys["eagle3.attention.layer_norm_rms_epsilon"]),
    )


def _check_target(path: Path, shape: HeadShape, target: ModelInfo) -> None:
    for what, mine, its in (
        ("a vocabulary", shape.n_vocab, target.n_vocab),
        ("rows", shape.n_embd_target, target.n_embd),
    ):
        if mine != its:
            raise TrainError(
                f"{path.name} was made for a target with {what} of {mine}, this one has {its}; "
                "begin without --init"
            )
    if shape.n_embd != target.n_embd:
        raise TrainError(_unlike(path, f"its rows are of {shape.n_embd}, not {target.n_embd}"))


def _check_tensors(path: Path, shape: HeadShape, tensors: Mapping[str, Any]) -> None:
    wanted = shape.sizes()
    unknown = sorted(tensors.keys() - wanted.keys()) + sorted(wanted.keys() - tensors.keys())
    if unknown:
        raise TrainError(_unlike(path, f"{unknown[0]} is in one of them and not in the other"))
    for name, size in wanted.items():
        if tensors[name].shape != size:
            found = tensors[name].shape
            raise TrainError(_unlike(path, f"{name} is of {found}, not {size}"))
        if not np.isfinite(tensors[name]).all():
            raise TrainError(f"{path.name} is damaged: {name} has a number that is not finite")


def _unlike(path: Path, why: str) -> str:
    return (
        f"{path.name} is not a head as train eagle3 makes them: {why}; give a draft that "
        "train eagle3 wrote, or begin without --init"
    )


def _count(keys: Mapping[str, Any], name: str) -> int:
    value = keys.get(_TRAIN + name, 0)
    return value if type(value) is int and value > 0 else 0
