"""The facts of a target that a draft needs, from a GGUF or a folder."""

from __future__ import annotations

from pathlib import Path

from pyllama_spec.convert.checkpoint import read_json
from pyllama_spec.convert.fields import Fields
from pyllama_spec.convert.tokenizer import read_tokenizer
from pyllama_spec.errors import ConversionError, ModelLoadError
from pyllama_spec.gguf.reader import read_keys
from pyllama_spec.gguf.target import Target, is_fact, target_of


def read_target(path: Path) -> Target:
    """Reads a target: the path of a GGUF, or of a folder with config.json and tokenizer.json.

    Raises:
        ConversionError: it is missing, damaged, not a language model, or lacks a required fact.

    """
    return _from_folder(path) if path.is_dir() else _from_gguf(path)


def _from_gguf(path: Path) -> Target:
    try:
        keys = read_keys(path, is_fact)
    except ModelLoadError as error:
        raise ConversionError(f"the target cannot be read: {error}") from None
    try:
        return target_of(path, keys)
    except ModelLoadError as error:
        raise ConversionError(str(error)) from None


def _from_folder(folder: Path) -> Target:
    config = Fields(read_json(folder / "config.json"))
    text = config.inner("text_config")
    body = text if text.values else config
    n_vocab = body.size("vocab_size")
    ropes = (body.inner("rope_parameters"), body.inner("rope_scaling"))
    return Target(
        n_layer=body.size("num_hidden_layers"),
        n_embd=body.size("hidden_size"),
        n_vocab=n_vocab,
        tokenizer=read_tokenizer(folder, n_vocab, config, body),
        arch=str(body.values.get("model_type") or config.values.get("model_type") or ""),
        has_mrope=any(rope.has("mrope_section") for rope in ropes),
    )
