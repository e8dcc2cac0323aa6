"""An EAGLE-3 draft checkpoint, of whichever tool, and its target -> one GGUF (docs/eagle3.md)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyllama_spec.convert.checkpoint import Checkpoint, open_checkpoint
from pyllama_spec.convert.config import DraftConfig, read_config
from pyllama_spec.convert.layer_ids import Convention, ResolvedIds, resolve
from pyllama_spec.convert.layout import Plan, common_name, plan_tensors
from pyllama_spec.convert.refusals import refuse_other_kinds
from pyllama_spec.convert.target import read_target
from pyllama_spec.errors import ArgumentError, ConversionError
from pyllama_spec.gguf.target import Target
from pyllama_spec.gguf.writer import KINDS, Kind, Output, import_gguf, write_gguf

Progress = Callable[[float], None]
# In the file, as pyllama_spec.convert.version: counts changes of what the same input becomes.
VERSION = 1
# Tokens by which the vocabulary of a config.json and that of a GGUF of the same model may differ:
# gpt-oss pads by 1069, Qwen2.5 by 399. Vocabularies of different models differ by far more.
_MAX_PADDING = 2048


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """What was converted, and to what.

    Attributes:
        path: the GGUF.
        layout: who wrote the checkpoint, as far as it tells.
        target_layers: layer inputs of the target that the draft reads.
        layer_ids: how its own ids were read: "default", "input" or "output".
        n_tensors: tensors of the GGUF.
        n_layer: decoder layers.
        n_draft_vocab: rows of a reduced output, None for the target's whole vocabulary.
        type_name: type of most weights, such as "BF16".
        n_bytes: size of the GGUF.
        notes: what was noticed on the way, one sentence each.

    """

    path: Path
    layout: str
    target_layers: tuple[int, ...]
    layer_ids: str
    n_tensors: int
    n_layer: int
    n_draft_vocab: int | None
    type_name: str
    n_bytes: int
    notes: tuple[str, ...]


def convert_eagle3(
    draft_dir: str | os.PathLike[str],
    target: str | os.PathLike[str],
    out_path: str | os.PathLike[str],
    *,
    kind: Kind | None = None,
    layer_ids: Convention | None = None,
    progress: Progress | None = None,
) -> ConversionReport:
    """Converts an EAGLE-3 draft: SafeAILab, SpecForge, speculators / RedHat or NVIDIA layout.

    Nothing is guessed: each tensor is used exactly once, each size comes from config.json and is
    compared with the tensors, and what can mean two things is refused.

    Args:
        draft_dir: the draft's folder, with config.json and .safetensors or .bin files.
        target: the target's GGUF, or its folder with config.json and tokenizer.json.
        out_path: the GGUF to write; an old one is replaced when the new one is whole.
        kind: type of the matrices; None keeps the checkpoint's. Norms and biases are F32.
        layer_ids: how the draft's layer ids count, where its files do not tell; the rule is in
            pyllama_spec/convert/layer_ids.py.
        progress: is told the share that is written, 0.0 .. 1.0.

    Raises:
        ConversionError: a file is missing or damaged, the draft is of another kind, or its parts
            contradict each other or the target.
        ArgumentError: there is no such kind or convention, or the output is an input.

    """
    _check_choices(kind, layer_ids)
    import_gguf()
    out = _check_output(Path(out_path), Path(target), Path(draft_dir))
    checkpoint = open_checkpoint(Path(draft_dir))
    shapes = {name: tensor.shape for name, tensor in checkpoint.tensors.items()}
    refuse_other_kinds(checkpoint.config, shapes)
    config = read_config(checkpoint.config)
    facts = read_target(Path(target))
    n_wanted = _count_target_layers(config, checkpoint, facts)
    ids = resolve(config.layer_ids, facts.n_layer, n_wanted, layer_ids)
    plan = plan_tensors(
        config, checkpoint.tensors, n_target_layers=n_wanted,
        target_n_embd=facts.n_embd, n_vocab=facts.n_vocab,
    )  # fmt: skip
    keys = _keys(config, ids, plan, facts)
    output = Output("eagle3", checkpoint.name, keys, facts.tokenizer, plan.tensors, kind)
    written = write_gguf(out, output, progress)
    return ConversionReport(
        path=out,
        layout=config.layout,
        target_layers=ids.target_layers,
        layer_ids=ids.counted,
        n_tensors=len(plan.tensors),
        n_layer=plan.n_layer,
        n_draft_vocab=plan.n_draft_vocab,
        type_name=written.type_name,
        n_bytes=written.n_bytes,
        notes=(*config.notes, *plan.notes, *written.notes),
    )


def _check_choices(kind: object, layer_ids: object) -> None:
    if kind is not None and kind not in KINDS:
        raise ArgumentError(f"no type {kind!r}; there are {', '.join(KINDS)}")
    if layer_ids not in (None, "input", "output"):
        raise ArgumentError(f"layer_ids is {layer_ids!r}; it is 'input', 'output' or None")


def _check_output(out: Path, target: Path, draft: Path) -> Path:
    if out.is_dir():
        raise ArgumentError(f"{out} is a folder; give the name of a file in it")
    if not out.parent.is_dir():
        raise ArgumentError(f"the folder {out.parent} does not exist")
    if out.exists() and target.exists() and out.samefile(target):
        raise ArgumentError(f"{out} is the target itself; give another output")
    if out.exists() and out.suffix != ".gguf" and out.resolve().parent == draft.resolve():
        raise ArgumentError(f"{out} is a file of the draft; give another output")
    return out


def _count_target_layers(config: DraftConfig, checkpoint: Checkpoint, target: Target) -> int:
    """How many rows of the target fc reads, by its width."""
    wanted = config.target_hidden_size
    if wanted is not None and wanted != target.n_embd:
        raise ConversionError(
            f"the draft was made for a target of width {wanted} (target_hidden_size), this one is "
            f"{target.n_embd} wide"
        )
    if abs(config.n_vocab - target.n_vocab) > _MAX_PADDING:
        raise ConversionError(
            f"the draft was made for a vocabulary of {config.n_vocab} tokens (vocab_size), this "
            f"target has {target.n_vocab}"
        )
    fc = next(t for name, t in checkpoint.tensors.items() if common_name(name) == "fc.weight")
    n_columns = fc.shape[1]
    n_layers, rest = divmod(n_columns, target.n_embd)
    if rest or n_layers == 0:
        raise ConversionError(
            f"fc.weight reads {n_columns} columns, which is no multiple of {target.n_embd}, the "
            "width of the target; is this the target that the draft was made for?"
        )
    if config.n_target_layers not in (None, n_layers):
        raise ConversionError(
            f"config.json says num_aux_hidden_states {config.n_target_layers}, and fc.weight reads "
            f"{n_layers} rows of {target.n_embd}"
        )
    return n_layers


def _keys(config: DraftConfig, ids: ResolvedIds, plan: Plan, target: Target) -> Mapping[str, Any]:
    keys: dict[str, Any] = {
        "context_length": config.n_ctx_train,
        "embedding_length": config.n_embd,
        "block_count": plan.n_layer,
        "feed_forward_length": config.n_ff,
        "attention.head_count": config.n_head,
        "attention.head_count_kv": config.n_head_kv,
        "attention.key_length": config.head_size,
        "attention.value_length": config.head_size,
        "attention.layer_norm_rms_epsilon": config.norm_eps,
        "vocab_size": target.n_vocab,
        "target_layers": ids.target_layers,
        "target_hidden_size": target.n_embd,
    }
    keys |= config.rope.keys
    # Only those that are on: stock llama.cpp knows the first two.
    for name in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"):
        if getattr(config, name):
            keys[name] = True
    if config.output_gate:
        keys["attention.output_gate"] = True
    named = {f"eagle3.{name}": value for name, value in keys.items()}
    return named | {
        "pyllama_spec.convert.version": str(VERSION),
        "pyllama_spec.convert.layout": config.layout,
        "pyllama_spec.convert.layer_ids": ids.counted,
    }
