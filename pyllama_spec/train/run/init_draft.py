"""Continues an earlier draft: with further text, or for a fine-tuned target.

Its shape, its draft vocabulary and its weights are taken over, and its n-gram table continues
beside the counts of the new text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyllama_spec.engine import Model, ModelInfo
from pyllama_spec.engine.model_info import NgramArrays
from pyllama_spec.errors import PyllamaSpecError
from pyllama_spec.gguf.reader import read_gguf
from pyllama_spec.gguf.values import read_floats, read_ids
from pyllama_spec.train.errors import TrainError, need
from pyllama_spec.train.files import hash_file
from pyllama_spec.train.run.head import DraftShape

_TRAIN = "pyllama_spec.train."


@dataclass(frozen=True, slots=True)
class InitDraft:
    """The parts taken from an earlier draft."""

    name: str  # the name of the file
    sha256: str  # the SHA-256 of the file
    shape: DraftShape  # the shape of the head
    d2t: npt.NDArray[np.int64]  # [n_draft_vocab] int64, the target's id of each draft id
    tensors: Mapping[str, npt.NDArray[np.float32]]  # the tensors as float32, by their GGUF names
    ngrams: NgramArrays | None  # its n-gram table, if it has one
    # the answer tokens seen by it and by the drafts that it started from, as far as its file
    # records them
    n_tokens: int
    n_text: int  # the number of different ones among them, as far as recorded


def read_init_draft(
    path: Path, target: ModelInfo, arch: str, shape_of: Callable[[Keys, int], DraftShape]
) -> InitDraft:
    """Reads a draft that training can continue: one that `train` wrote."""
    need("gguf")
    if not path.exists():
        raise TrainError(f"init={path} does not exist; check its path")
    with Model(path) as model:
        if model.info.arch != arch:
            raise TrainError(f"{path.name} is a {model.info.arch}, not a draft of kind {arch}")
        arrays = model.ngram_arrays()
    wanted = (f"{arch}.", _TRAIN, "tokenizer.ggml.mask")
    file = read_gguf(path, lambda name: name.startswith(wanted))
    keys = {name.removeprefix(f"{arch}."): key.value for name, key in file.keys.items()}
    tensors = {
        name: read_floats(path, tensor)
        for name, tensor in file.tensors.items()
        if name != "d2t" and not name.startswith("ngram.")
    }
    d2t = read_ids(path, file.tensors["d2t"]) if "d2t" in file.tensors else np.zeros(0, np.int64)
    try:
        shape = shape_of(Keys(keys, {n: v.shape for n, v in tensors.items()}, target), len(d2t))
    except (KeyError, TypeError, ValueError, PyllamaSpecError) as error:
        raise TrainError(_unlike(path, f"its keys do not say its sizes ({error})")) from None
    _check_target(path, shape, target)
    if not len(d2t) or (np.diff(d2t) <= 0).any() or d2t[0] < 0 or d2t[-1] >= target.n_vocab:
        raise TrainError(_unlike(path, "it has no d2t that rises within the target's vocabulary"))
    _check_tensors(path, shape, tensors)
    return InitDraft(
        path.name, hash_file(path), shape, d2t, tensors,
        arrays, *n_seen(keys),
    )  # fmt: skip


def n_seen(keys: Mapping[str, Any]) -> tuple[int, int]:
    """The answer tokens that a draft has been trained on, and the distinct ones, from its keys.

    Includes those of earlier runs.
    """
    return (
        _count(keys, "tokens") + _count(keys, "tokens_before"),
        _count(keys, "corpus_tokens") + _count(keys, "corpus_tokens_before"),
    )


@dataclass(frozen=True, slots=True)
class Keys:
    """The shape of a draft in its file's keys."""

    values: Mapping[str, Any]  # the values by key, without the architecture's prefix
    sizes: Mapping[str, tuple[int, ...]]  # the sizes of its tensors
    target: ModelInfo  # the target to draft for

    def number(self, name: str) -> int:
        """A numeric key."""
        return int(self.values[name])

    def common(self) -> dict[str, Any]:
        """The fields of DraftShape, without the two vocabularies and the target's width."""
        return {
            "n_embd": self.number("embedding_length"),
            "target_layers": tuple(int(layer) for layer in self.values["target_layers"]),
            "n_head": self.number("attention.head_count"),
            "n_head_kv": self.number("attention.head_count_kv"),
            "n_ff": self.number("feed_forward_length"),
            "rope_base": float(self.values["rope.freq_base"]),
            "rms_eps": float(self.values["attention.layer_norm_rms_epsilon"]),
        }


def check_same(path: Path, *facts: tuple[str, object, object]) -> None:
    """Checks what the target of an initial draft had against this one's: name, then, now."""
    for what, own, its in facts:
        if own != its:
            raise TrainError(
                f"{path.name} was made for a target with {what} of {own}, this one has {its}; "
                "begin without --init"
            )


def _check_target(path: Path, shape: DraftShape, target: ModelInfo) -> None:
    check_same(
        path,
        ("a vocabulary", shape.n_vocab, target.n_vocab),
        ("rows", shape.n_embd_target, target.n_embd),
    )
    if shape.n_embd != target.n_embd:
        raise TrainError(_unlike(path, f"its rows are of {shape.n_embd}, not {target.n_embd}"))


def _check_tensors(path: Path, shape: DraftShape, tensors: Mapping[str, Any]) -> None:
    wanted, found = shape.sizes(), {name: values.shape for name, values in tensors.items()}
    if odd := sorted(name for name, _ in wanted.items() ^ found.items()):
        read = f"{odd[0]} is of {found.get(odd[0])}, not {wanted.get(odd[0])}"
        raise TrainError(_unlike(path, read))
    for name, values in tensors.items():
        check_finite(path, name, values)


def check_finite(path: Path, name: str, values: npt.NDArray[np.float32]) -> None:
    """Raises if a file has nan or inf weights, from which training cannot recover."""
    if not np.isfinite(values).all():
        raise TrainError(
            f"{path.name} is damaged: {name} has a number that is not finite; give an intact copy "
            "of the file"
        )


def _unlike(path: Path, why: str) -> str:
    return (
        f"{path.name} is not a head as train makes them: {why}; give a draft that train wrote, or "
        "begin without --init"
    )


def _count(keys: Mapping[str, Any], name: str) -> int:
    value = keys.get(_TRAIN + name, 0)
    return value if type(value) is int and value > 0 else 0
