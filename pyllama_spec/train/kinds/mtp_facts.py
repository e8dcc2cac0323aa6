"""The shape of a GGUF's MTP head, and whether it can be trained.

A head is one block after the layers: norms, a joining matrix, attention and a feed-forward part.
Tensors that its architecture here does not know are refused by name, since a gradient through half
a graph makes a head that no engine computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyllama_spec.engine import ModelInfo
from pyllama_spec.engine.model import HEAD_ROWS, most_heads
from pyllama_spec.errors import UnsupportedError
from pyllama_spec.gguf.reader import GgufTensor, read_gguf
from pyllama_spec.train.errors import TrainError
from pyllama_spec.train.run.head import DraftShape

_SOFTMAX, _SIGMOID = 1, 2
"""Of expert_gating_func, as the engine numbers them."""


@dataclass(frozen=True, slots=True)
class Family:
    """The structure of an architecture's MTP block."""

    is_gated: bool  # whether each head's query has a gate of the attention's output beside it
    ffn_norm: str  # the norm before the feed-forward part
    gating: int  # the router's gating, if the file has no key for it
    # whether the engine ignores the file's keys of gating and of weights that sum to one
    is_fixed: bool = False


_QWEN = Family(True, "post_attention_norm", _SOFTMAX, is_fixed=True)
FAMILIES: Mapping[str, Family] = {
    "qwen35": _QWEN,
    "qwen35moe": _QWEN,
    "qwen3next": _QWEN,
    "glm4moe": Family(False, "post_attention_norm", _SIGMOID),
    "hy_v3": Family(False, "ffn_norm", _SIGMOID),
}
"""Architectures whose heads can be trained, by the engine's names."""

_INDEXER = "an indexer chooses which tokens it attends to, and no gradient goes through a choice"
_LATENT = "training has no graph of its attention over one latent row"
REFUSED: Mapping[str, str] = {
    "deepseek2": _LATENT,
    "bailingmoe3": _LATENT,
    "cohere2moe": "training has no graph of its window and its parallel feed-forward part",
    "nemotron_h_moe": "training has no graph of its feed-forward part and its last norm",
    "deepseek32": _INDEXER,
    "glm-dsa": _INDEXER,
    "glm5-next": _INDEXER,
    "qwen4exp": _INDEXER,
    "deepseek4": "its rows are several streams, whose mixing training does not compute",
    "step35": "its attention has windows and angles that training does not compute",
    "mimo2": "its attention has windows and sinks that training does not compute",
}
"""Architectures whose heads draft as they are, and why they cannot be trained."""

TABLES: tuple[str, ...] = ("token_embd.weight", "output.weight", "output_norm.weight")
"""What the file of a head alone has beside the block."""

_OTHER = "`train eagle3` makes a draft of another kind for it"
_MOE = ("ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
_SHARED = ("ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp")


def head_note(info: ModelInfo, name: str) -> str | None:
    """A remark for a run that trains another draft though the file has a head; None without one."""
    if not 0 < info.n_heads <= most_heads(info.arch):
        return None
    what = "an MTP head" if info.n_heads == 1 else f"{info.n_heads} MTP heads"
    goes_on = (
        "" if info.n_heads > 1 or info.arch in REFUSED else ", and `train mtp` trains it further"
    )
    uses = 'draft="mtp" uses it' if info.n_heads == 1 else 'draft="mtp" uses them'
    return f"{name} has {what} already: {uses}{goes_on}"


@dataclass(frozen=True, slots=True)
class MtpShape(DraftShape):
    """The shape of a trainable head; see DraftShape. n_draft_vocab counts tokens in the loss."""

    arch: str  # general.architecture of the file
    block: int  # the number of its block
    n_key: int  # the size of a head's query
    n_rot: int  # how many numbers of it RoPE rotates
    n_used: int  # experts per token; 0 without experts
    gating: int  # 1 softmax, 2 sigmoid
    is_normed: bool  # whether the weights of a token's experts sum to one
    expert_scale: float  # a factor on these weights
    trained: dict[str, tuple[int, ...]]  # the shapes of trained tensors: [n_out, n_in] or [n]
    fixed: tuple[str, ...]  # tensors that stay unchanged, the vocabulary's tables included

    @property
    def head_size(self) -> int:
        """The size of an attention head, which need not divide the width."""
        return self.n_key

    def sizes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the trained tensors, and of the output rows in the loss."""
        return {**self.trained, "output.weight": (self.n_draft_vocab, self.n_embd)}

    @property
    def family(self) -> Family:
        """The family of the architecture."""
        return FAMILIES[self.arch]

    def tensor(self, name: str, part: str = "weight") -> str:
        """The full name of a tensor of the block."""
        return f"blk.{self.block}.{name}.{part}"

    def has(self, name: str, part: str = "weight") -> bool:
        """Whether the block has a tensor."""
        whole = self.tensor(name, part)
        return whole in self.trained or whole in self.fixed

    @property
    def last_norm(self) -> str:
        """The norm before the output, which every written head has."""
        return self.tensor("nextn.shared_head_norm")


def read_shape(path: Path, info: ModelInfo) -> MtpShape:
    """Reads the shape of a file's head. Raises if it cannot be trained."""
    if not info.n_heads:
        raise UnsupportedError(f"{path.name} ({info.arch}) has no MTP head to train; {_OTHER}")
    if info.n_heads > 1:
        raise UnsupportedError(
            f"{path.name} has {info.n_heads} MTP heads, and training takes one alone; {_OTHER}"
        )
    if info.arch not in FAMILIES:
        why = REFUSED.get(info.arch, "training has no graph of it")
        raise _refused(path, f"architecture {info.arch!r}: {why}")
    file = read_gguf(path, lambda name: name.startswith(f"{info.arch}."))
    keys = _Keys(path, info.arch, {n: k.value for n, k in file.keys.items()})
    block = keys.block = keys.number("block_count") - 1
    tensors, family = file.tensors, FAMILIES[info.arch]
    _check_keys(path, keys, tensors)
    fixed = [name for name in TABLES if name in tensors]
    trained: dict[str, tuple[int, ...]] = {}
    for name in _block_names(path, tensors, block, family):
        if _is_fixed(tensors[name], name):
            fixed.append(name)
        else:
            trained[name] = tensors[name].shape
    n_head = keys.number("attention.head_count")
    has_experts = f"blk.{block}.ffn_gate_inp.weight" in tensors
    shape = MtpShape(
        n_vocab=info.n_vocab, n_draft_vocab=info.n_vocab, n_embd=info.n_embd,
        target_layers=(HEAD_ROWS,), n_head=n_head, n_ff=0,
        rope_base=keys.real("rope.freq_base", 10000.0),
        rms_eps=keys.real("attention.layer_norm_rms_epsilon"),
        arch=info.arch, block=block, **_attention(keys, tensors, family, n_head),
        **_experts(path, keys, family, has_experts), trained=trained, fixed=tuple(fixed),
    )  # fmt: skip
    trained[shape.last_norm] = (info.n_embd,)
    return shape


def _refused(path: Path, why: str) -> UnsupportedError:
    return UnsupportedError(f"{path.name}: the MTP head cannot be trained: {why}; {_OTHER}")


class _Keys:
    """The keys of a file, without the architecture's prefix; of a list, the block's value."""

    def __init__(self, path: Path, arch: str, values: Mapping[str, Any]) -> None:
        self._path, self._arch, self._values, self.block = path, arch, values, 0

    def get(self, name: str, default: Any = None) -> Any:
        value = self._values.get(f"{self._arch}.{name}", default)
        if isinstance(value, list):
            value = value[self.block] if self.block < len(value) else default
        if value is None:
            raise TrainError(f"{self._path.name} has no {self._arch}.{name}, which its head needs")
        return value

    def number(self, name: str, default: int | None = None) -> int:
        return int(self.get(name, default))

    def real(self, name: str, default: float | None = None) -> float:
        return float(self.get(name, default))


def _check_keys(path: Path, keys: _Keys, tensors: Mapping[str, GgufTensor]) -> None:
    """Raises for positions, attention or experts that training does not compute."""
    usual = {
        "rope.scaling.factor": 1.0, "attention.scale": 0.0, "attention.sliding_window": 0.0,
        "expert_group_count": 1.0, "logit_scale": 1.0,
    }  # fmt: skip
    odd = [name for name in tensors if name.startswith("rope_f")]
    odd += [name for name, value in usual.items() if keys.real(name, value) not in (0.0, value)]
    if odd:
        raise _refused(path, f"training does not compute what {odd[0]} says")


def _is_fixed(tensor: GgufTensor, name: str) -> bool:
    """Whether a tensor is not trained: experts, their router, and per-head matrices.

    The tables of the vocabulary stay unchanged too, as those of every draft do.
    """
    routes = ("ffn_gate_inp.weight", "exp_probs_b.bias", "exp_probs_b", "exp_probs_b.weight")
    tables = ("nextn.embed_tokens.weight", "nextn.shared_head_head.weight")
    return len(tensor.shape) > 2 or name.split(".", 2)[2] in (*routes, *tables)


def _block_names(
    path: Path, tensors: Mapping[str, GgufTensor], block: int, family: Family
) -> list[str]:
    """The tensors of the block. Raises if one is missing or unknown."""
    prefix = f"blk.{block}."
    names = [name for name in tensors if name.startswith(prefix)]
    own = {name.removeprefix(prefix).removesuffix(".weight") for name in names}
    needed = ["nextn.eh_proj", "nextn.enorm", "nextn.hnorm", "attn_norm", "attn_output"]
    optional = ["nextn.shared_head_norm", "nextn.embed_tokens", "nextn.shared_head_head"]
    needed += ["attn_q", "attn_k", "attn_v", family.ffn_norm]
    (needed if family.is_gated else optional).extend(("attn_q_norm", "attn_k_norm"))
    optional += [] if family.is_gated else ["attn_q.bias", "attn_k.bias", "attn_v.bias"]
    if "ffn_gate_inp" in own:
        needed += _MOE
        optional += ["exp_probs_b", "exp_probs_b.bias", "ffn_gate_inp_shexp"]
        (needed if "ffn_up_shexp" in own else optional).extend(_SHARED)
    else:
        needed += ["ffn_up", "ffn_down", "ffn_gate"]
    missing = [name for name in needed if name not in own]
    if missing:
        raise TrainError(
            f"{path.name} has no tensor {prefix}{missing[0]}.weight: its head is incomplete; if "
            "the model is split, give the merged file"
        )
    unknown = sorted(own.difference(needed, optional))
    if unknown:
        raise _refused(path, f"training does not know its tensor {prefix}{unknown[0]}")
    return names


def _attention(
    keys: _Keys, tensors: Mapping[str, GgufTensor], family: Family, n_head: int
) -> dict[str, Any]:
    """The sizes of the attention; the engine has compared the tensors' with the keys."""
    n_parts = 2 if family.is_gated else 1  # of what attn_q gives each head
    size = tensors[f"blk.{keys.block}.attn_q.weight"].shape[0] // n_head // n_parts
    n_rot = keys.number("rope.dimension_count", size)
    return {"n_head_kv": keys.number("attention.head_count_kv"), "n_key": size, "n_rot": n_rot}


def _experts(path: Path, keys: _Keys, family: Family, has_experts: bool) -> dict[str, Any]:
    """The selection and weighting of experts."""
    if not has_experts:
        return {"n_used": 0, "gating": 0, "is_normed": False, "expert_scale": 1.0}
    gating = family.gating
    if not family.is_fixed:
        gating = keys.number("expert_gating_func", gating) or gating
    if gating not in (_SOFTMAX, _SIGMOID):
        why = f"its experts are chosen by function {gating}, and training knows softmax and sigmoid"
        raise _refused(path, why)
    return {
        "n_used": keys.number("expert_used_count"),
        "gating": gating,
        "is_normed": family.is_fixed or bool(keys.get("expert_weights_norm", False)),
        # The engine takes 0, which it reads from files without the key, for 1.
        "expert_scale": keys.real("expert_weights_scale", 1.0) or 1.0,
    }
