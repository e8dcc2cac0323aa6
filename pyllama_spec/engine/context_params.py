"""The parameters of a context."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pyllama_spec.engine.binding import lib
from pyllama_spec.engine.checks import FLOAT32_MAX, check_options
from pyllama_spec.engine.system import bounded_n_threads
from pyllama_spec.errors import ArgumentError
from pyllama_spec.options import option

# What a KV cache can be made of, by the engine's names.
KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
# Those of them that attention without flash attention reads.
UNPACKED = ("f32", "f16", "bf16")
ROPE_SCALING = {None: -1, "none": 0, "linear": 1, "yarn": 2, "longrope": 3}
# The engine's numbers of these names; None is the model's own.
POOLING = {None: -1, "none": 0, "mean": 1, "cls": 2, "last": 3, "rank": 4}
ATTENTION = {None: -1, "causal": 0, "non-causal": 1}
# The fields that the engine's struct has too.
_SAME = (
    "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq", "n_outputs_max", "rope_freq_base",
    "rope_freq_scale", "yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow",
    "yarn_orig_ctx", "offload_kqv", "op_offload", "swa_full", "kv_unified", "embeddings", "is_head",
)  # fmt: skip


def _names(numbers: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(name for name in numbers if name is not None)


@dataclass(frozen=True, slots=True)
class ContextParams:
    """The parameters of a context.

    Attributes:
        n_ctx: positions of the context, shared by its sequences; None for the model's own length.
        n_batch: the most tokens that one decode takes.
        n_ubatch: the most tokens that the engine computes at once.
        n_seq_max: the most sequences.
        n_rs_seq: snapshots of a recurrent state per sequence, which bound a rollback.
        n_outputs_max: the most tokens with logits in a batch; 0 for n_batch.
        n_threads: CPU threads; None for the machine's physical cores.
        n_threads_batch: CPU threads for batches of more than one token; None for n_threads.
        flash_attn: None for off on the CPU, and for the engine's choice on a GPU. On the CPU, rows
            are equal either way, see Context.exact_rows.
        type_k, type_v: the KV cache's types.
        rope_freq_base, rope_freq_scale: 0 for the model's own.
        rope_scaling: None for the model's own.
        yarn_ext_factor, yarn_attn_factor, yarn_beta_fast, yarn_beta_slow: for rope_scaling="yarn";
            below 0 for the model's own.
        yarn_orig_ctx: the context length of training before any scaling; 0 for the model's own.
        pooling: how token embeddings become one of a text; None for the model's own.
        attention_type: "causal" or "non-causal"; None for the model's own.
        offload_kqv: keeps the KV cache on the GPU with its layers.
        op_offload: lets the GPU compute wide batches (prompts) for layers in host memory too. Then
            rows of a prompt and rows of a draft are rounded differently.
        swa_full: keeps all positions of sliding-window layers, so that any prefix can be reused.
        kv_unified: uses one KV buffer for all sequences.
        embeddings: keeps the output embeddings too.
        is_window: positions may exceed n_ctx; the caller of decode() removes old ones in time.
        target_layers: the layer inputs that every decode keeps, see Context.layer_input().
        is_head: whether this is a context of the model's own MTP head. It has no embeddings, no
            pooling and no snapshots, regardless of the other fields.
    """

    n_ctx: int | None = option(512, low=1)
    n_batch: int = option(2048, low=1)
    n_ubatch: int = option(512, low=1)
    n_seq_max: int = option(1, low=1)
    n_rs_seq: int = option(0, low=0)
    n_outputs_max: int = option(0, low=0)
    n_threads: int | None = option(None, low=1)
    n_threads_batch: int | None = option(None, low=1)
    flash_attn: bool | None = None
    type_k: str = option("f16", choices=KV_TYPES)
    type_v: str = option("f16", choices=KV_TYPES)
    rope_freq_base: float = option(0.0, low=0, high=FLOAT32_MAX)
    rope_freq_scale: float = option(0.0, low=0, high=FLOAT32_MAX)
    rope_scaling: str | None = option(None, choices=_names(ROPE_SCALING))
    yarn_ext_factor: float = option(-1.0, low=-FLOAT32_MAX, high=FLOAT32_MAX)
    yarn_attn_factor: float = option(-1.0, low=-FLOAT32_MAX, high=FLOAT32_MAX)
    yarn_beta_fast: float = option(-1.0, low=-FLOAT32_MAX, high=FLOAT32_MAX)
    yarn_beta_slow: float = option(-1.0, low=-FLOAT32_MAX, high=FLOAT32_MAX)
    yarn_orig_ctx: int = option(0, low=0)
    pooling: str | None = option(None, choices=_names(POOLING))
    attention_type: str | None = option(None, choices=_names(ATTENTION))
    offload_kqv: bool = True
    op_offload: bool = False
    swa_full: bool = True
    kv_unified: bool = False
    embeddings: bool = False
    is_window: bool = False
    target_layers: tuple[int, ...] = ()
    is_head: bool = False

    def __post_init__(self) -> None:
        check_options(self)
        if self.flash_attn is False and self.type_v not in UNPACKED:
            raise ArgumentError(
                "type_v", self.type_v, problem="needs flash attention, and `flash_attn` is off",
                remedy="leave `flash_attn` out, or choose `type_v=f16`",
            )  # fmt: skip

    def fill(self, raw: Any) -> None:
        """Writes the parameters, except the layers, to the engine's struct."""
        for name in _SAME:
            setattr(raw, name, getattr(self, name))
        raw.n_threads = bounded_n_threads(self.n_threads)
        raw.n_threads_batch = bounded_n_threads(self.n_threads_batch or raw.n_threads)
        raw.type_k = lib.llama_spec_type_id(self.type_k.encode())
        raw.type_v = lib.llama_spec_type_id(self.type_v.encode())
        raw.rope_scaling_type = ROPE_SCALING[self.rope_scaling]
        raw.pooling_type = POOLING[self.pooling]
        raw.attention_type = ATTENTION[self.attention_type]
