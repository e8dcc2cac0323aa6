"""Copies a model with a larger vocabulary, to measure drafts for such a target.

    python benchmarks/wide_vocabulary.py IN.gguf OUT.gguf [262144]

The added tokens never occur: their rows of the embedding, which must be the output matrix too, are
zero. All else is unchanged, and so is the model's text. SmolLM2-135M with 262,144 tokens has the
proportions of Gemma 3 270M.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
import numpy as np

_TYPE_UNUSED = 5


def widen(source: Path, out: Path, n_vocab: int) -> None:
    """Writes the copy."""
    reader = gguf.GGUFReader(source)
    arch = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(out, arch)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value, kinds = field.contents(), field.types
        if name == "tokenizer.ggml.tokens":
            value += [f"<unused{i}>" for i in range(n_vocab - len(value))]
        elif name == "tokenizer.ggml.token_type":
            value += [_TYPE_UNUSED] * (n_vocab - len(value))
        elif name == f"{arch}.vocab_size":
            value = n_vocab
        inside = kinds[1] if kinds[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, kinds[0], sub_type=inside)
    names = {tensor.name for tensor in reader.tensors}
    if "output.weight" in names:
        sys.exit(f"{source} has an output matrix of its own; this is for models without")
    for tensor in reader.tensors:
        data = tensor.data
        if tensor.name == "token_embd.weight":
            data = np.concatenate(
                [data, np.zeros((n_vocab - len(data), *data.shape[1:]), data.dtype)]
            )
        writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    widen(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 262_144)
