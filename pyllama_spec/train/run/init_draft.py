"""Continues an earlier draft: with further text, or for a fine-tuned target.

Its shape, its draft vocabulary and its weights are taken over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyllama_spec.engine import Model, ModelInfo
from pyllama_spec.errors import PyllamaSpecError
from pyllama_spec.gguf.reader import read_gguf
from pyllama_spec.gguf.values import read_floats, read_ids
from pyllama_spec.train.errors import TrainError
from pyllama_spec.train.files import hash_file
from pyllama_spec.train.run.head import DraftShape

_TRAIN = "pyllama_spec.train."
Keys = Mapping[str, Any]
Sizes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class InitDraft:
    """The parts taken from an earlier draft."""

    name: str  # the name of the file
    sha256: str  # the SHA-256 of the file
    shape: DraftShape  # the shape of the head
    d2t: npt.NDArray[np.int64]  # [n_draft_vocab] int64, the target's id of each draft id
    tensors: Mapping[str, npt.NDArray[np.float32]]  # the tensors as float32, by their GGUF names
    # the answer tokens of its text and of that of the drafts that it started from
    n_text: int


def read_init_draft(
    path: Path, target: ModelInfo, arch: str, shape_of: Callable[[Keys, Sizes, int], DraftShape]
) -> InitDraft:
    """Reads a draft that training can continue: one that `train` wrote."""
    if not path.exists():
        raise TrainError(f"init={path} does not exist; check its path")
    with Model(path) as model:
        if model.info.arch != arch:
            raise TrainError(f"{path.name} is a {model.info.arch}, not a draft of kind {arch}")
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
        shape = shape_of(keys, {n: v.shape for n, v in tensors.items()}, len(d2t))
    except (KeyError, TypeError, ValueError, PyllamaSpecError) as error:
        raise TrainError(_unlike(path, f"its keys do not say its sizes ({error})")) from None
    check_same(
        path,
        ("a vocabulary", shape.n_vocab, target.n_vocab),
        ("rows", shape.n_embd, target.n_embd),
    )
    if not len(d2t) or (np.diff(d2t) <= 0).any() or d2t[0] < 0 or d2t[-1] >= target.n_vocab:
        raise TrainError(_unlike(path, "it has no d2t that rises within the target's vocabulary"))
    sizes, found = shape.sizes(), {name: values.shape for name, values in tensors.items()}
    if odd := sorted(name for name, _ in sizes.items() ^ found.items()):
        read = f"{odd[0]} is of {found.get(odd[0])}, not {sizes.get(odd[0])}"
        raise TrainError(_unlike(path, read))
    for name, values in tensors.items():
        check_finite(path, name, values)
    return InitDraft(path.name, hash_file(path), shape, d2t, tensors, n_text(keys))


def n_text(keys: Mapping[str, Any]) -> int:
    """The answer tokens of a draft's text, earlier runs included, from its keys."""
    counts = (keys.get(f"{_TRAIN}{name}", 0) for name in ("corpus_tokens", "corpus_tokens_before"))
    return sum(n for n in counts if isinstance(n, int))


def common_sizes(keys: Keys) -> dict[str, Any]:
    """The fields of DraftShape in a file's keys, without the vocabularies and the target's width.

    Args:
        keys: the values by key, without the architecture's prefix.
    """
    return {
        "n_embd": int(keys["embedding_length"]),
        "target_layers": tuple(int(layer) for layer in keys["target_layers"]),
        "n_head": int(keys["attention.head_count"]),
        "n_head_kv": int(keys["attention.head_count_kv"]),
        "n_ff": int(keys["feed_forward_length"]),
        "rope_base": float(keys["rope.freq_base"]),
        "rms_eps": float(keys["attention.layer_norm_rms_epsilon"]),
    }


def check_same(path: Path, *facts: tuple[str, object, object]) -> None:
    """Checks what the target of an initial draft had against this one's: name, then, now."""
    for what, own, its in facts:
        if own != its:
            raise TrainError(
                f"{path.name} was made for a target with {what} of {own}, this one has {its}; "
                "begin without --init"
            )


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
