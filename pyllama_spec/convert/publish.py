"""A trained EAGLE-3 head as the checkpoint that vLLM and SGLang read: eagle3.py the other way."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pyllama_spec.convert.eagle3 import FLAGS, LAYER_IDS, TABLE, neighbour_rows
from pyllama_spec.convert.layout import Row
from pyllama_spec.errors import ArgumentError, ConversionError
from pyllama_spec.files import whole_file
from pyllama_spec.gguf.reader import GgufTensor, read_gguf
from pyllama_spec.gguf.tensors import STORED, Ids, Raw
from pyllama_spec.gguf.values import read_floats, read_ids, read_stored
from pyllama_spec.gguf.writer import import_gguf

LAYOUTS = ("speculators", "eagle3")
"""That of the package speculators, which vLLM reads, and that of SpecForge, which SGLang reads."""

_Entry = tuple[str, str, tuple[int, ...], Callable[[], Raw]]
"""The name, type and shape of a tensor in the checkpoint, and what reads its numbers."""


def publish_eagle3(
    draft: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    layout: str,
    target: str | os.PathLike[str] | None = None,
) -> tuple[str, ...]:
    """Writes config.json and model.safetensors of a head into a new or empty folder.

    The numbers are those of the file: F32, F16 and BF16 stay, quantised ones become F32. An n-gram
    table is left out, since no other engine reads it.

    Args:
        draft: the head's GGUF, as `train eagle3` writes it.
        folder: where to write.
        layout: one of LAYOUTS.
        target: the original of the target, a folder or its name on a hub, whose name stands in the
            layout of speculators.

    Returns:
        Remarks for the user.

    Raises:
        ConversionError: the file is no EAGLE-3 head, or has what the layout cannot say.
        ArgumentError: the layout is unknown, or the folder has files.
        ModelLoadError: the file cannot be read.
    """
    if layout not in LAYOUTS:
        raise ArgumentError("to", layout, f"one of {', '.join(LAYOUTS)}")
    import_gguf()
    path, out = Path(draft), Path(folder)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ArgumentError("out", out, problem="has files already", remedy="give a new folder")
    file = read_gguf(path, lambda name: name.startswith(("general.architecture", "eagle3.")))
    keys = {name.removeprefix("eagle3."): key.value for name, key in file.keys.items()}
    if keys.get("general.architecture") != b"eagle3":
        raise ConversionError(f"{path.name} is no EAGLE-3 head; only such a one can be written so")
    odd = [key for key in keys if key.startswith(("rope.scaling", "attention.output_gate"))]
    if odd or keys["block_count"] != 1:
        odd.append(f"{keys['block_count']} layers")
        raise ConversionError(f"{path.name} has {odd[0]}; a head of `train eagle3` has not")
    ids = read_ids(path, file.tensors["d2t"]) if "d2t" in file.tensors else None
    entries = [*_weights(path, keys, file.tensors, layout), *_vocabulary(ids, keys["vocab_size"])]
    config = _config(keys, file.tensors, layout, ids)
    if layout == "speculators":
        config["speculators_config"]["verifier"]["name_or_path"] = target and os.fspath(target)
    out.mkdir(parents=True, exist_ok=True)
    _write_safetensors(out / "model.safetensors", entries)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    if len(keys["target_layers"]) == 3 and not keys.get("norm_output"):
        return ()
    note = "it reads other than 3 layers or has the norms of EAGLE-3.1, as not all engines know"
    return (f"{note}; `train eagle3 --plain` makes a head for all",)


def _weights(
    path: Path, keys: Mapping[str, Any], tensors: Mapping[str, GgufTensor], layout: str
) -> Iterator[_Entry]:
    """The weights; raises if the table has no name for one."""
    size = keys["attention.key_length"]
    heads = {"q": keys["attention.head_count"], "k": keys["attention.head_count_kv"], "head": 1}
    orders = {name: neighbour_rows(n, size) for name, n in heads.items()}
    first = "midlayer" if layout == "eagle3" else "layers.0"
    known: dict[str, tuple[str, Row]] = {}
    for row in TABLE.outer:
        for i in range(len(keys["target_layers"])):
            known[row.name.format(i=i)] = row.source.format(i=i), row
    for row in TABLE.layer:
        known[f"blk.0.{row.name}"] = f"{first}.{row.source}", row
    for name, tensor in tensors.items():
        if name == "d2t" or name.startswith("ngram."):
            continue
        if name not in known:
            raise ConversionError(f"{path.name} has {name}, for which the layout has no name")
        source, row = known[name]
        yield _weight(path, tensor, source, orders.get(row.order))


def _weight(path: Path, tensor: GgufTensor, name: str, rows: Raw | None) -> _Entry:
    stored, kind = read_stored(path, tensor)
    is_kept = kind in ("F32", "F16", "BF16")

    def read() -> Raw:
        values: Raw = read_floats(path, tensor)
        if is_kept:
            values = stored.reshape(-1).view(STORED[kind]).reshape(tensor.shape)
        if rows is None:
            return values
        out = np.empty_like(values)
        out[rows] = values
        return out

    return name, kind if is_kept else "F32", tensor.shape, read


def _vocabulary(ids: Ids | None, n_vocab: int) -> Iterator[_Entry]:
    """d2t as offsets, and the mask of the tokens that it names; see vocabulary.py."""
    if ids is not None:
        yield "d2t", "I64", ids.shape, lambda: ids - np.arange(len(ids))
        yield "t2d", "BOOL", (n_vocab,), lambda: np.isin(np.arange(n_vocab), ids).view(np.uint8)


def _config(
    keys: Mapping[str, Any], tensors: Mapping[str, GgufTensor], layout: str, ids: Ids | None
) -> dict[str, Any]:
    n_vocab = keys["vocab_size"]
    has_bias = any(name.endswith("attn_q.bias") for name in tensors)
    body = {
        "model_type": "llama", "hidden_act": "silu", "torch_dtype": "float16",
        "hidden_size": keys["embedding_length"], "vocab_size": n_vocab,
        "intermediate_size": keys["feed_forward_length"],
        "num_hidden_layers": keys["block_count"],
        "num_attention_heads": keys["attention.head_count"],
        "num_key_value_heads": keys["attention.head_count_kv"],
        "head_dim": keys["attention.key_length"],
        "rms_norm_eps": keys["attention.layer_norm_rms_epsilon"],
        "rope_theta": keys["rope.freq_base"],
        "max_position_embeddings": keys["context_length"],
        "attention_bias": has_bias, "tie_word_embeddings": False,
    }  # fmt: skip
    layers = list(keys["target_layers"])
    top = {"draft_vocab_size": n_vocab if ids is None else len(ids)}
    top |= {"target_hidden_size": keys["target_hidden_size"], "num_aux_hidden_states": len(layers)}
    top |= {name: True for name in FLAGS if keys.get(name)}
    if layout == "eagle3":
        if 0 in layers:
            raise ConversionError("the head reads the input of layer 0, which no output is")
        outputs = [k - 1 for k in layers]
        aux = {"use_aux_hidden_state": True, LAYER_IDS: outputs}
        return {"architectures": ["LlamaForCausalLMEagle3"], **body, **top, "eagle_config": aux}
    way = {
        "proposal_type": "greedy", "speculative_tokens": 3, "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }  # fmt: skip
    return {
        "architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3",
        "norm_before_residual": False, **top, LAYER_IDS: layers, "transformer_layer_config": body,
        "speculators_config": {
            "algorithm": "eagle3", "default_proposal_method": "greedy", "proposal_methods": [way],
            "verifier": {"name_or_path": None, "architectures": []},
        },
    }  # fmt: skip


def _write_safetensors(path: Path, entries: list[_Entry]) -> None:
    """The length of a header in JSON, the header, and the numbers one after the other."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, kind, shape, _ in entries:
        end = at + int(np.prod(shape)) * STORED[kind].itemsize
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": (at, end)}
        at = end
    text = json.dumps(header).encode()
    with whole_file(path) as part, part.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, kind, _, read in entries:
            file.write(np.ascontiguousarray(read(), STORED[kind]).tobytes())
