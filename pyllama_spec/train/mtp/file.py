"""Reads an MTP head from the target's file or its own, and writes it to its own.

A file with a head alone has the keys of its target, the tables of the vocabulary and the block of
the head. Untrained tensors are copied byte by byte, in whatever type they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from pyllama_spec.engine import Model, ModelInfo
from pyllama_spec.gguf.reader import GgufTensor, read_keys, read_table
from pyllama_spec.gguf.tensors import PlannedTensor
from pyllama_spec.gguf.values import read_floats, read_stored
from pyllama_spec.gguf.writer import Kind as ExportType
from pyllama_spec.gguf.writer import Output
from pyllama_spec.train.errors import TrainError
from pyllama_spec.train.files import hash_file
from pyllama_spec.train.mtp.facts import TABLES, HeadFacts, read_facts
from pyllama_spec.train.mtp.head import shape_of
from pyllama_spec.train.run.init_draft import InitDraft, check_finite, n_seen

Floats = npt.NDArray[np.float32]

# Keys about the file itself, and not about its model.
_OWN_KEYS = (
    "general.architecture", "general.name", "general.type", "general.file_type",
    "general.quantization_version", "general.alignment", "split.", "pyllama_spec.",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HeadFile:
    """A head in a file.

    Attributes:
        path: the path of the file.
        facts: the facts of the head.
        tensors: the tensor table of the file.
    """

    path: Path
    facts: HeadFacts
    tensors: Mapping[str, GgufTensor]

    def floats(self, name: str) -> Floats:
        """The numbers of a tensor, float32."""
        return read_floats(self.path, self.tensors[name])

    def check(self) -> None:
        """Raises if a weight of the head is damaged; reads one tensor at a time."""
        fixed = (name for name in self.facts.fixed if name not in TABLES)
        for name in (*self.facts.trained, *fixed):
            self._own_weights(name)

    def trained(self) -> dict[str, Floats]:
        """The trained tensors by name; raises as check() does."""
        return {name: self._own_weights(name) for name in self.facts.trained}

    def fixed(self) -> dict[str, Floats]:
        """The block's fixed tensors without the vocabulary tables; raises as check() does."""
        own = map(self.facts.tensor, ("nextn.embed_tokens", "nextn.shared_head_head"))
        tables = {*TABLES, *own}
        return {name: self._own_weights(name) for name in self.facts.fixed if name not in tables}

    def _own_weights(self, name: str) -> Floats:
        """A tensor of the head. A head without a last norm uses the target's."""
        values = self.floats(name if name in self.tensors else "output_norm.weight")
        wanted = tuple(self.facts.trained.get(name, values.shape))
        if values.shape != wanted:
            raise TrainError(f"{self.path.name}: {name} is of {values.shape}, not {wanted}")
        check_finite(self.path, name, values)
        return values

    def own_table(self, name: str) -> Floats | None:
        """The head's own vocabulary table; None if it uses the target's."""
        whole = self.facts.tensor(name)
        return self.floats(whole) if whole in self.tensors else None


def open_head(path: Path, info: ModelInfo) -> HeadFile:
    """Reads the facts of a head without its weights."""
    return HeadFile(path, read_facts(path, info), read_table(path).tensors)


def open_head_for(path: Path, target: Model) -> HeadFile:
    """Opens the initial head of a run: the target's, or that of a file made for it."""
    info, its_info = _info(path), target.info
    for what, own, its in (
        ("architecture", info.arch, its_info.arch),
        ("rows", info.n_embd, its_info.n_embd),
        ("a vocabulary", info.n_vocab, its_info.n_vocab),
        ("layers", info.n_layer, its_info.n_layer),
    ):
        if own != its:
            raise TrainError(
                f"{path.name} is of a model with {what} of {own}, this one has {its}; begin "
                "without --init"
            )
    return open_head(path, info)


def read_head_draft(path: Path, target: Model) -> InitDraft:
    """Reads the initial head of a run with its weights; raises as open_head_for() does."""
    head = open_head_for(path, target)
    said = read_keys(path, lambda name: name.startswith("pyllama_spec.train."))
    n_tokens, n_text = n_seen({name: key.value for name, key in said.items()})
    return InitDraft(
        path.name, hash_file(path), shape_of(head.facts, head.facts.n_vocab),
        np.arange(head.facts.n_vocab, dtype=np.int64), head.trained(), None, n_tokens, n_text,
    )  # fmt: skip


def _info(path: Path) -> ModelInfo:
    """A file's ModelInfo. The engine loads the head and checks its tensors against the keys."""
    if not path.exists():
        raise TrainError(f"init={path} does not exist; check its path")
    with Model(path, load_mtp=True, repack=False) as model:
        return model.info


def head_output(
    head: HeadFile,
    trained: Mapping[str, Floats],
    name: str,
    record: Mapping[str, Any],
    export_type: str,
) -> Output:
    """The content of a file with the head alone."""
    keys = read_keys(head.path, lambda key: not key.startswith(_OWN_KEYS))
    own = {f"pyllama_spec.train.{key}": value for key, value in record.items()}
    tensors = [_raw(head.path, head.tensors[name]) for name in head.facts.fixed]
    tensors += [PlannedTensor.of_weights(*tensor) for tensor in trained.items()]
    return Output(head.facts.arch, name, own, keys, tensors, cast(ExportType, export_type))


def _raw(path: Path, tensor: GgufTensor) -> PlannedTensor:
    """A tensor in its stored type."""
    values, stored = read_stored(path, tensor)
    return PlannedTensor(tensor.name, tensor.shape, values=values, stored=stored)
