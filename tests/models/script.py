"""SCRIPT: a model that generates a fixed text from one position on, whatever the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .config import TinyConfig
from .sketch import Sketch
from .vocab import EOS


def build_script(
    path: Path,
    *,
    n_prompt: int,
    script: Sequence[int],
    **extra: Any,
) -> Path:
    """Write the SCRIPT target, a GPT-2 whose next token is a function of the position alone.

    After a prompt of `n_prompt` tokens it generates the tokens of `script`, and then EOS. The
    embedding of each position is the one-hot row of the next token. Token embeddings are zero, and
    the layer adds nothing. Any engine that reads GGUF generates this text.
    """
    n_vocab = 320
    n_positions = n_prompt + len(script) + 16
    cfg = TinyConfig(
        "gpt2", n_layer=1, n_vocab=n_vocab, n_embd=n_vocab, n_ctx_train=n_positions,
        suppress_special=False, **extra,
    )  # fmt: skip
    m = Sketch(cfg)
    m.key("context_length", n_positions)
    m.key("embedding_length", n_vocab)
    m.key("block_count", 1)
    m.key("feed_forward_length", cfg.n_ff)
    m.key("attention.head_count", cfg.n_head)
    m.key("attention.layer_norm_epsilon", cfg.norm_eps)
    said = np.full(n_positions, EOS)
    said[n_prompt - 1 :][: len(script)] = script
    m.put("token_embd.weight", np.zeros((n_vocab, n_vocab)))
    m.put("position_embd.weight", np.eye(n_vocab)[said])
    m.put("output_norm.weight", np.ones(n_vocab))
    m.put("output_norm.bias", np.zeros(n_vocab))
    m.put("output.weight", np.eye(n_vocab) * 16.0 / np.sqrt(n_vocab))
    for name, shape in (
        ("attn_norm", (n_vocab,)), ("attn_qkv", (3 * n_vocab, n_vocab)),
        ("attn_output", (n_vocab, n_vocab)), ("ffn_norm", (n_vocab,)),
        ("ffn_up", (cfg.n_ff, n_vocab)), ("ffn_down", (n_vocab, cfg.n_ff)),
    ):  # fmt: skip
        m.put(f"blk.0.{name}.weight", np.zeros(shape))
        m.put(f"blk.0.{name}.bias", np.zeros(shape[0]))
    return m.write(path)
