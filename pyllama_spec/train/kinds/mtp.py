"""An MTP head as a PyTorch module, computed for many pairs at once; mtp_facts.py lists its parts.

A pair is a token with the row of the one before, or in a draft with the head's own last row:

    e, h     the norms of the token's embedding and of the row
    x        eh_proj of both, the residual stream of the block
    x        + attention, + feed-forward part
    row      the last norm of x: what the next step reads, and what gives logits

Trained tensors have the names and shapes of the GGUF. The experts, their router, matrices for each
head and the tables of the vocabulary stay as they are, and no checkpoint holds them.

A chain starts at a place P with the token x[P] that is known and the target's row of x[P-1]
(drafters/kinds.py), and is otherwise one of run/chains.py; what is learned flows back through the
rows of all its steps. A file with a head alone has the keys of its target, the tables of the
vocabulary and the block of the head. Untrained tensors are copied byte by byte, in whatever type
they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from pyllama_spec.train.kinds.mtp_facts import TABLES, HeadFacts, check_window, read_facts
from pyllama_spec.train.progress import Reporter, SilentReporter
from pyllama_spec.train.run.chains import ChainHead, Pairs
from pyllama_spec.train.run.head import DraftShape
from pyllama_spec.train.run.init_draft import InitDraft, check_finite, check_same, n_seen
from pyllama_spec.train.run.kind import ChainKind, Inputs

Floats = npt.NDArray[np.float32]

# The least sum of a token's weights that the engine divides by.
_LEAST_SUM = 6.103515625e-5
# Keys about the file itself, and not about its model.
_OWN_KEYS = (
    "general.architecture", "general.name", "general.type", "general.file_type",
    "general.quantization_version", "general.alignment", "split.", "pyllama_spec.",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class MtpShape(DraftShape):
    """The sizes of a head; see DraftShape. n_draft_vocab counts the tokens in the loss."""

    facts: HeadFacts  # further facts of the file's head

    def __post_init__(self) -> None:
        """Checks nothing: the engine has loaded a head of these sizes."""

    @property
    def head_size(self) -> int:
        """The size of an attention head, which need not divide the width."""
        return self.facts.head_size

    def sizes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the trained tensors, and of the output rows in the loss."""
        trained = {name: tuple(size) for name, size in self.facts.trained.items()}
        return {**trained, "output.weight": (self.n_draft_vocab, self.n_embd)}


def shape_of_head(facts: HeadFacts, n_draft_vocab: int) -> MtpShape:
    """The shape of a file's head."""
    return MtpShape(
        n_vocab=facts.n_vocab, n_draft_vocab=n_draft_vocab, n_embd=facts.n_embd,
        n_embd_target=facts.n_embd, target_layers=(HEAD_ROWS,), n_head=facts.n_head,
        n_head_kv=facts.n_head_kv, n_ff=0, rope_base=facts.rope_base, rms_eps=facts.rms_eps,
        facts=facts,
    )  # fmt: skip


class MtpHead(ChainHead):
    """A head; see ChainHead.

    Args:
        shape: its sizes.
        embedding: [n_vocab, n_embd] float32, the embedding that the head reads.
        d2t: [n_draft_vocab] int64, the tokens in the loss.
        fixed: the tensors that stay unchanged, float32, by their GGUF names.
    """

    offset = 1

    def __init__(
        self, shape: MtpShape, embedding: Floats, d2t: npt.NDArray[np.int64],
        fixed: Mapping[str, Floats],
    ) -> None:  # fmt: skip
        super().__init__(shape, embedding, d2t)
        self.shape, self.facts = shape, shape.facts
        n_rot = self.facts.n_rot
        pairs = torch.arange(0, n_rot, 2, dtype=torch.float64) / max(n_rot, 1)
        angles = (shape.rope_base**-pairs).float()
        self.register_buffer("frequencies", angles, persistent=False)
        for name, values in fixed.items():
            self.register_buffer(_of(name), torch.from_numpy(values), persistent=False)

    def load_tensors(self, tensors: Mapping[str, Floats]) -> None:
        """Sets the trained tensors, and the given rows of the output matrix."""
        with torch.no_grad():
            for name in self._names:
                if name in tensors:
                    self.weight(name).copy_(torch.from_numpy(tensors[name]))

    def _fixed(self, name: str) -> Tensor:
        """The fixed tensors of the block."""
        value: Tensor = getattr(self, _of(self.facts.tensor(name)))
        return value

    def _block(self, x: Tensor, name: str) -> Tensor:
        """The product with a matrix of the block, plus its bias if it has one."""
        y = self._linear(x, self.facts.tensor(name))
        if self.facts.has(name, "bias"):
            y = y + self.weight(self.facts.tensor(name, "bias"))
        return y

    def _block_norm(self, x: Tensor, name: str) -> Tensor:
        return self._norm(x, self.facts.tensor(name))

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
        """See ChainHead; the queries are scaled for scores by the root of their size."""
        facts, normed = self.facts, pairs.read
        if facts.n_latent:
            gate = self._block(normed, "attn_gate")[..., None] if facts.has("attn_gate") else None
            return self._latent_queries(normed, positions), gate
        q, gate = self._block(normed, "attn_q").unflatten(-1, (facts.n_head, -1)), None
        if facts.family.attention == "gated":
            q, gate = q.chunk(2, dim=-1)
        return self._turn(self._head_norm(q, "attn_q_norm"), positions), gate

    def keys_and_values(self, pairs: Pairs, positions: Tensor) -> tuple[Tensor, Tensor]:
        """See ChainHead."""
        normed = pairs.read
        if self.facts.n_latent:
            latent, k = self._latent_row(normed)
            keys = torch.cat((latent, self._turn(k, positions)), dim=-1)
            return keys, torch.cat((latent, torch.zeros_like(k)), dim=-1)
        k = self._head_norm(self._heads_of(self._block(normed, "attn_k")), "attn_k_norm")
        return self._turn(k, positions), self._heads_of(self._block(normed, "attn_v"))

    def finish(
        self, pairs: Pairs, attended: Tensor, gate: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """See ChainHead."""
        if self.facts.n_latent:
            latent = attended[..., : self.facts.n_latent]
            attended = torch.einsum("hvr,nhr->nhv", self._fixed("attn_v_b"), latent)
        if gate is not None:
            attended = attended * torch.sigmoid(gate)
        attended_out = self._block(attended.flatten(-2), "attn_output").float()
        before, x = self.facts.family.ffn_norm, pairs.rows
        if before:
            x = x + attended_out
            x = x + self._feed(self._block_norm(x, before))
        else:  # beside attention
            x = x + attended_out + self._feed(pairs.read)
        row = self._last_norm(x)
        return row, row * self.facts.logit_scale

    def _heads_of(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.facts.n_head_kv, -1))

    def _head_norm(self, x: Tensor, name: str) -> Tensor:
        return self._block_norm(x, name) if self.facts.has(name) else x

    def _latent_queries(self, normed: Tensor, positions: Tensor) -> Tensor:
        """The queries of latent attention, with their rotated part after."""
        facts = self.facts
        if facts.has("attn_q"):
            q = self._block(normed, "attn_q")
        else:
            low = self._block_norm(self._block(normed, "attn_q_a"), "attn_q_a_norm")
            q = self._block(low, "attn_q_b")
        q = q.unflatten(-1, (facts.n_head, facts.head_size))
        plain, turned = q.split((facts.head_size - facts.n_rot, facts.n_rot), dim=-1)
        absorbed = torch.einsum("hrm,nhm->nhr", self._fixed("attn_k_b"), plain)
        out = torch.cat((absorbed, self._turn(turned, positions)), dim=-1)
        # attend() divides by the root of what a query has; here it is that of a head's own size.
        scaled: Tensor = out * (out.shape[-1] / facts.head_size) ** 0.5
        return scaled

    def _latent_row(self, normed: Tensor) -> tuple[Tensor, Tensor]:
        """The latent row shared by all heads, and the rotated part of its key: [n, 1, ..]."""
        facts = self.facts
        row = self._block(normed, "attn_kv_a_mqa")[:, None]
        latent, k = row.split((facts.n_latent, facts.n_rot), dim=-1)
        return self._block_norm(latent, "attn_kv_a_norm"), k.float()

    def _turn(self, x: Tensor, positions: Tensor) -> Tensor:
        n_rot, kind = self.facts.n_rot, self.facts.family.rope
        if not n_rot:
            return x
        cos, sin = self._angles(positions)
        head = x[..., :n_rot].float()
        if kind == "pairs":
            a, b = head[..., 0::2], head[..., 1::2]
            turned = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
        else:
            a, b = head.chunk(2, dim=-1)
            turned = torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)
        return torch.cat((turned.to(x.dtype), x[..., n_rot:]), dim=-1)

    def _feed(self, x: Tensor) -> Tensor:
        """The feed-forward output, [n, n_embd] float32."""
        facts = self.facts
        if not facts.n_used:
            return self._dense(x, "").float()
        out = self._routed(x)
        if facts.has("ffn_up_shexp"):
            shared = self._dense(x, "_shexp").float()
            if facts.has("ffn_gate_inp_shexp"):
                gate = self.weight(facts.tensor("ffn_gate_inp_shexp")).view(1, -1)
                shared = shared * torch.sigmoid(nnf.linear(x, gate))
            out = out + shared
            out = out if facts.family.ffn_norm else out / 2
        return out

    def _dense(self, x: Tensor, end: str) -> Tensor:
        up = self._block(x, f"ffn_up{end}")
        if self.facts.family.is_squared:
            return self._block(nnf.relu(up).square(), f"ffn_down{end}")
        return self._block(nnf.silu(self._block(x, f"ffn_gate{end}")) * up, f"ffn_down{end}")

    def _routed(self, x: Tensor) -> Tensor:
        """The weighted output of each token's experts: [n, n_embd] float32."""
        chosen, shares = self._routes(x)
        up, down = self._fixed("ffn_up_exps"), self._fixed("ffn_down_exps")
        parts, places = [], []
        for expert in chosen.unique().tolist():
            rows, slot = (chosen == expert).nonzero(as_tuple=True)
            one = x[rows]
            inner = nnf.linear(one, up[expert])
            if self.facts.family.is_squared:
                inner = nnf.relu(inner).square()
            else:
                gate = self._fixed("ffn_gate_exps")[expert]
                inner = nnf.silu(nnf.linear(one, gate)) * inner
            out_of = nnf.linear(inner, down[expert]).float()
            parts.append(out_of * shares[rows, slot, None])
            places.append(rows)
        out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        return out.index_add(0, torch.cat(places), torch.cat(parts))

    def _routes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The experts of each token and their weights, both [n, n_used].

        In float32 for any dtype of the products: a rounded score selects another expert.
        """
        facts = self.facts
        with torch.autocast(x.device.type, enabled=False):
            scores = nnf.linear(x.float(), self._fixed("ffn_gate_inp"))
        p = scores.softmax(-1) if facts.gating == 1 else torch.sigmoid(scores)
        biased = p
        for name in ("exp_probs_b.bias", "exp_probs_b", "exp_probs_b.weight"):
            whole = f"blk.{facts.block}.{name}"
            biased = p + getattr(self, _of(whole)) if whole in facts.fixed else biased
        chosen = biased.topk(facts.n_used, dim=-1).indices
        shares = p.gather(-1, chosen)
        if facts.is_normed:
            shares = shares / shares.sum(-1, keepdim=True).clamp(min=_LEAST_SUM)
        return chosen, shares * facts.expert_scale

    def _last_norm(self, x: Tensor) -> Tensor:
        """The output of the last norm, [n, n_embd] float32."""
        if not self.facts.family.has_centred_norm:
            return self._norm(x, self.facts.last_norm)
        x = x.float()
        centred = x - x.mean(-1, keepdim=True)
        scale = torch.rsqrt(centred.square().mean(-1, keepdim=True) + self.facts.last_eps)
        return centred * scale * self.weight(self.facts.last_norm)

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
    facts: HeadFacts  # the facts of the head
    tensors: Mapping[str, GgufTensor]  # the tensor table of the file

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
    check_same(
        path,
        ("architecture", info.arch, its_info.arch),
        ("rows", info.n_embd, its_info.n_embd),
        ("a vocabulary", info.n_vocab, its_info.n_vocab),
        ("layers", info.n_layer, its_info.n_layer),
    )
    return open_head(path, info)


def read_head_draft(path: Path, target: Model) -> InitDraft:
    """Reads the initial head of a run with its weights; raises as open_head_for() does."""
    head = open_head_for(path, target)
    record = read_keys(path, lambda name: name.startswith("pyllama_spec.train."))
    n_tokens, n_text = n_seen({name: key.value for name, key in record.items()})
    return InitDraft(
        path.name, hash_file(path), shape_of_head(head.facts, head.facts.n_vocab),
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


class MtpKind(ChainKind[MtpHead, MtpTrainConfig]):
    """Heads that a file has; they draft one token per step."""

    arch = "mtp"
    title = "MTP head"
    head_class = MtpHead
    folder = "mtp"
    vocab_name = "losses and measurements look at"
    must_gain = True

    def __init__(self, config: MtpTrainConfig, model: Model) -> None:
        super().__init__(config, model)
        self.n_steps = config.fit.n_steps
        self._source = open_head_for(config.begun_with, model)
        check_window(
            self._source.facts, config.begun_with.name, config.corpus.n_ctx, config.fit.n_steps
        )
        self._source.check()  # before hours of text

    def notes(self, layers: tuple[int, ...]) -> list[str]:
        """A remark on the fixed tensors."""
        has_experts = any(name.endswith("_exps.weight") for name in self._source.facts.fixed)
        return ["its experts and their router stay as they are"] if has_experts else []

    def read_draft(self, path: Path) -> InitDraft:
        """See Kind."""
        return read_head_draft(path, self.model)

    def shape(self, start: Inputs) -> MtpShape:
        """See Kind."""
        return shape_of_head(self._source.facts, len(start.vocab.d2t))

    def vocab(self, sequences: Sequence[TextSequence], init: InitDraft | None) -> DraftVocab:
        """The ids in losses and measurements; see MtpFitConfig."""
        n_vocab, always = self.model.info.n_vocab, ending_tokens(self.model.vocab)
        size = max(min(self.config.fit.n_loss_vocab, n_vocab), len(set(always)))
        return choose_draft_vocab(sequences, n_vocab, size, always)

    def new_head(self, start: Inputs, reporter: Reporter) -> MtpHead:
        """The file's head."""
        source, weights, d2t = self._source, start.weights, start.vocab.d2t
        embedding, output = source.own_table("nextn.embed_tokens"), weights.output
        own_output = source.own_table("nextn.shared_head_head")
        output = output if own_output is None else own_output
        embedding = weights.embedding if embedding is None else embedding
        head = MtpHead(self.shape(start), embedding, d2t, source.fixed())
        head.load_tensors({**source.trained(), "output.weight": output[d2t]})
        return head

    def known_head(self, start: Inputs, init: InitDraft) -> MtpHead:
        """The file's head: it is the one that the run continues."""
        return self.new_head(start, SilentReporter())

    def output(
        self, head: MtpHead, name: str, record: Mapping[str, Any], export_type: str
    ) -> Output:
        """The content of a file with a head alone."""
        return head_output(
            self._source, head.trained(), f"{name} {self.title}", record, export_type
        )


KIND = MtpKind
