"""An MTP head as a PyTorch module, computed for many pairs at once; mtp_facts.py lists its parts.

A pair is a token with the row of the one before, or in a draft with the head's own last row:

    e, h     the norms of the token's embedding and of the row
    x        eh_proj of both, the residual stream of the block, + attention, + feed-forward part
    row      the last norm of x: what the next step reads, and what gives logits

Trained tensors have the names and shapes of the GGUF. The experts, their router, matrices for each
head and the tables of the vocabulary stay as they are: no checkpoint holds them, and the file of a
head copies them byte by byte. A chain starts at a place P with the token x[P] and the target's row
of x[P-1] (drafters/kinds.py), and is otherwise one of run/chains.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as nnf
from torch import Tensor

from pyllama_spec.engine import Model, ModelInfo
from pyllama_spec.engine.model import HEAD_ROWS
from pyllama_spec.gguf.reader import GgufTensor, read_keys, read_table
from pyllama_spec.gguf.tensors import PlannedTensor
from pyllama_spec.gguf.values import read_floats, read_stored
from pyllama_spec.gguf.writer import Kind as ExportType
from pyllama_spec.gguf.writer import Output
from pyllama_spec.train.config import MtpTrainConfig
from pyllama_spec.train.corpus.draft_vocab import DraftVocab, choose_draft_vocab, ending_tokens
from pyllama_spec.train.corpus.store import TextSequence
from pyllama_spec.train.errors import TrainError
from pyllama_spec.train.files import hash_file
from pyllama_spec.train.kinds.mtp_facts import TABLES, MtpShape, read_shape
from pyllama_spec.train.progress import Reporter
from pyllama_spec.train.run.chains import ChainHead, Pairs
from pyllama_spec.train.run.init_draft import InitDraft, check_finite, check_same, n_text
from pyllama_spec.train.run.kind import ChainKind, Inputs

Floats = npt.NDArray[np.float32]

# The least sum of a token's weights that the engine divides by.
_LEAST_SUM = 6.103515625e-5
# Losses and measurements look at the most frequent ids: as many as a head chooses from that drafts
# over a part of the vocabulary (drafters/output_part.py).
_N_LOSS_VOCAB = 16_384
# Keys about the file itself, and not about its model.
_OWN_KEYS = (
    "general.architecture", "general.name", "general.type", "general.file_type",
    "general.quantization_version", "general.alignment", "split.", "pyllama_spec.",
)  # fmt: skip


class MtpHead(ChainHead):
    """A head; see ChainHead. `fixed` are the tensors that stay unchanged, by their GGUF names."""

    offset = 1

    def __init__(
        self, shape: MtpShape, embedding: Floats, d2t: npt.NDArray[np.int64],
        fixed: Mapping[str, Floats],
    ) -> None:  # fmt: skip
        super().__init__(shape, embedding, d2t)
        self.shape, n_rot = shape, shape.n_rot
        pairs = torch.arange(0, n_rot, 2, dtype=torch.float64) / n_rot
        angles = (shape.rope_base**-pairs).float()
        self.register_buffer("frequencies", angles, persistent=False)
        for name, values in fixed.items():
            self.register_buffer(_of(name), torch.from_numpy(values), persistent=False)

    def _fixed(self, name: str) -> Tensor:
        """The fixed tensors of the block."""
        value: Tensor = getattr(self, _of(self.shape.tensor(name)))
        return value

    def _block(self, x: Tensor, name: str) -> Tensor:
        """The product with a matrix of the block, plus its bias if it has one."""
        y = self._linear(x, self.shape.tensor(name))
        if self.shape.has(name, "bias"):
            y = y + self.weight(self.shape.tensor(name, "bias"))
        return y

    def _block_norm(self, x: Tensor, name: str) -> Tensor:
        return self._norm(x, self.shape.tensor(name))

    def rows_of(self, features: Tensor) -> Tensor:
        """See ChainHead: the rows are the target's own."""
        return features

    def pair(self, tokens: Tensor, rows: Tensor) -> Pairs:
        """See ChainHead: the residual stream before the block, and its norm."""
        e = self._block_norm(self.embedding[tokens], "nextn.enorm")
        both = torch.cat((e, self._block_norm(rows, "nextn.hnorm")), dim=-1)
        x = self._block(both, "nextn.eh_proj").float()
        return Pairs(x, self._block_norm(x, "attn_norm"))

    def queries(self, pairs: Pairs, positions: Tensor) -> tuple[Tensor, Tensor | None]:
        """See ChainHead."""
        q, gate = self._block(pairs.read, "attn_q").unflatten(-1, (self.shape.n_head, -1)), None
        if self.shape.family.is_gated:
            q, gate = q.chunk(2, dim=-1)
        return self._turn(self._head_norm(q, "attn_q_norm"), positions), gate

    def keys_and_values(self, pairs: Pairs, positions: Tensor) -> tuple[Tensor, Tensor]:
        """See ChainHead."""
        k = self._head_norm(self._heads_of(self._block(pairs.read, "attn_k")), "attn_k_norm")
        return self._turn(k, positions), self._heads_of(self._block(pairs.read, "attn_v"))

    def finish(
        self, pairs: Pairs, attended: Tensor, gate: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """See ChainHead."""
        if gate is not None:
            attended = attended * torch.sigmoid(gate)
        x = pairs.rows + self._block(attended.flatten(-2), "attn_output").float()
        x = x + self._feed(self._block_norm(x, self.shape.family.ffn_norm))
        row = self._norm(x, self.shape.last_norm)
        return row, row

    def _heads_of(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.shape.n_head_kv, -1))

    def _head_norm(self, x: Tensor, name: str) -> Tensor:
        return self._block_norm(x, name) if self.shape.has(name) else x

    def _turn(self, x: Tensor, positions: Tensor) -> Tensor:
        n_rot = self.shape.n_rot
        cos, sin = self._angles(positions)
        a, b = x[..., :n_rot].float().chunk(2, dim=-1)
        turned = torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)
        return torch.cat((turned.to(x.dtype), x[..., n_rot:]), dim=-1)

    def _feed(self, x: Tensor) -> Tensor:
        """The feed-forward output, [n, n_embd] float32."""
        shape = self.shape
        if not shape.n_used:
            return self._dense(x, "").float()
        out = self._routed(x)
        if shape.has("ffn_up_shexp"):
            shared = self._dense(x, "_shexp").float()
            if shape.has("ffn_gate_inp_shexp"):
                gate = self.weight(shape.tensor("ffn_gate_inp_shexp")).view(1, -1)
                shared = shared * torch.sigmoid(nnf.linear(x, gate))
            out = out + shared
        return out

    def _dense(self, x: Tensor, end: str) -> Tensor:
        up = self._block(x, f"ffn_up{end}")
        return self._block(nnf.silu(self._block(x, f"ffn_gate{end}")) * up, f"ffn_down{end}")

    def _routed(self, x: Tensor) -> Tensor:
        """The weighted output of each token's experts: [n, n_embd] float32."""
        chosen, shares = self._routes(x)
        gate, up, down = (self._fixed(f"ffn_{name}_exps") for name in ("gate", "up", "down"))
        parts, places = [], []
        for expert in chosen.unique().tolist():
            rows, slot = (chosen == expert).nonzero(as_tuple=True)
            one = x[rows]
            inner = nnf.silu(nnf.linear(one, gate[expert])) * nnf.linear(one, up[expert])
            out_of = nnf.linear(inner, down[expert]).float()
            parts.append(out_of * shares[rows, slot, None])
            places.append(rows)
        out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        return out.index_add(0, torch.cat(places), torch.cat(parts))

    def _routes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The experts of each token and their weights, both [n, n_used].

        In float32 for any dtype of the products: a rounded score selects another expert.
        """
        shape = self.shape
        with torch.autocast(x.device.type, enabled=False):
            scores = nnf.linear(x.float(), self._fixed("ffn_gate_inp"))
        p = scores.softmax(-1) if shape.gating == 1 else torch.sigmoid(scores)
        biased = p
        for name in ("exp_probs_b.bias", "exp_probs_b", "exp_probs_b.weight"):
            whole = f"blk.{shape.block}.{name}"
            biased = p + getattr(self, _of(whole)) if whole in shape.fixed else biased
        chosen = biased.topk(shape.n_used, dim=-1).indices
        shares = p.gather(-1, chosen)
        if shape.is_normed:
            shares = shares / shares.sum(-1, keepdim=True).clamp(min=_LEAST_SUM)
        return chosen, shares * shape.expert_scale

    def trained(self) -> dict[str, Any]:
        """The trained tensors by GGUF name, float32."""
        return {name: values for name, values in self.tensors().items() if name != "output.weight"}


def _of(name: str) -> str:
    # PyTorch keeps dots in names to itself.
    return "fixed/" + name.replace(".", "/")


@dataclass(frozen=True, slots=True)
class HeadFile:
    """A head in a file."""

    path: Path  # the path of the file
    shape: MtpShape  # the shape of the head
    tensors: Mapping[str, GgufTensor]  # the tensor table of the file

    def floats(self, name: str) -> Floats:
        """The numbers of a tensor, float32."""
        return read_floats(self.path, self.tensors[name])

    def trained(self) -> dict[str, Floats]:
        """The trained tensors by name; raises if one is damaged."""
        return {name: self._own_weights(name) for name in self.shape.trained}

    def fixed(self) -> dict[str, Floats]:
        """The block's fixed tensors without the vocabulary tables; raises if one is damaged."""
        return {name: self._own_weights(name) for name in self._fixed}

    @property
    def _fixed(self) -> list[str]:
        own = map(self.shape.tensor, ("nextn.embed_tokens", "nextn.shared_head_head"))
        tables = {*TABLES, *own}
        return [name for name in self.shape.fixed if name not in tables]

    def _own_weights(self, name: str) -> Floats:
        """A tensor of the head. A head without a last norm uses the target's."""
        values = self.floats(name if name in self.tensors else "output_norm.weight")
        wanted = self.shape.trained.get(name, values.shape)
        if values.shape != wanted:
            raise TrainError(f"{self.path.name}: {name} is of {values.shape}, not {wanted}")
        check_finite(self.path, name, values)
        return values

    def table(self, name: str, targets: Floats) -> Floats:
        """The head's own table of the vocabulary, else the target's."""
        whole = self.shape.tensor(name)
        return self.floats(whole) if whole in self.tensors else targets

    def output(
        self, trained: Mapping[str, Floats], name: str, record: Mapping[str, Any], export_type: str
    ) -> Output:
        """The content of a file with the head alone; fixed tensors are copied as they are."""
        keys = read_keys(self.path, lambda key: not key.startswith(_OWN_KEYS))
        own = {f"pyllama_spec.train.{key}": value for key, value in record.items()}
        tensors: list[PlannedTensor] = []
        for fixed in (self.tensors[name] for name in self.shape.fixed):
            values, stored = read_stored(self.path, fixed)
            tensors.append(PlannedTensor(fixed.name, fixed.shape, values=values, stored=stored))
        tensors += [PlannedTensor.of_weights(*tensor) for tensor in trained.items()]
        return Output(self.shape.arch, name, own, keys, tensors, cast(ExportType, export_type))


def open_head(path: Path, info: ModelInfo) -> HeadFile:
    """Reads the shape of a head without its weights."""
    return HeadFile(path, read_shape(path, info), read_table(path).tensors)


def _open_head_for(path: Path, target: ModelInfo) -> HeadFile:
    """Opens the initial head of a run: the target's, or that of a file made for it."""
    if not path.exists():
        raise TrainError(f"init={path} does not exist; check its path")
    # The engine checks the head's tensors against the keys.
    with Model(path, load_mtp=True, repack=False) as model:
        info = model.info
    check_same(
        path,
        ("architecture", info.arch, target.arch),
        ("rows", info.n_embd, target.n_embd),
        ("a vocabulary", info.n_vocab, target.n_vocab),
        ("layers", info.n_layer, target.n_layer),
    )
    return open_head(path, info)


class MtpKind(ChainKind[MtpHead, MtpTrainConfig]):
    """Heads that a file has; they draft one token per step."""

    title = "MTP head"
    head_class = MtpHead
    must_gain = True

    def __init__(self, config: MtpTrainConfig, model: Model) -> None:
        super().__init__(config, model)
        self.n_steps = config.fit.n_steps
        self._source = _open_head_for(config.begun_with, model.info)

    def default_layers(self, n_layer: int) -> tuple[int, ...]:
        """See Kind: the rows that the target's own head reads."""
        return (HEAD_ROWS,)

    def notes(self, layers: tuple[int, ...]) -> list[str]:
        """A remark on the fixed tensors."""
        has_experts = self._source.shape.n_used > 0
        return ["its experts and their router stay as they are"] if has_experts else []

    def read_draft(self, path: Path) -> InitDraft:
        """See Kind."""
        head = _open_head_for(path, self.model.info)
        record = read_keys(path, lambda name: name.startswith("pyllama_spec.train."))
        return InitDraft(
            path.name, hash_file(path), head.shape, np.arange(head.shape.n_vocab, dtype=np.int64),
            head.trained(), n_text({name: key.value for name, key in record.items()}),
        )  # fmt: skip

    def shape(self, start: Inputs) -> MtpShape:
        """See Kind."""
        return replace(self._source.shape, n_draft_vocab=len(start.vocab.d2t))

    def vocab(self, sequences: Sequence[TextSequence], init: InitDraft | None) -> DraftVocab:
        """The ids in losses and measurements; the head itself keeps all ids of the target."""
        n_vocab, always = self.model.info.n_vocab, ending_tokens(self.model.vocab)
        size = max(min(_N_LOSS_VOCAB, n_vocab), len(set(always)))
        return choose_draft_vocab(sequences, n_vocab, size, always)

    def new_head(self, start: Inputs, reporter: Reporter) -> MtpHead:
        """The file's head."""
        source, weights, d2t = self._source, start.weights, start.vocab.d2t
        embedding = source.table("nextn.embed_tokens", weights.embedding)
        output = source.table("nextn.shared_head_head", weights.output)
        head = MtpHead(self.shape(start), embedding, d2t, source.fixed())
        head.load_tensors({**source.trained(), "output.weight": output[d2t]})
        return head

    def known_head(self, start: Inputs, init: InitDraft) -> MtpHead:
        """The file's head: it is the one that the run continues."""
        return self.new_head(start, Reporter())

    def output(
        self, head: MtpHead, name: str, record: Mapping[str, Any], export_type: str
    ) -> Output:
        """The content of a file with a head alone."""
        return self._source.output(head.trained(), f"{name} {self.title}", record, export_type)


KIND = MtpKind
