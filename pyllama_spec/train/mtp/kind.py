"""MTP heads as a kind of draft for training runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pyllama_spec.engine import Model
from pyllama_spec.gguf.writer import Output
from pyllama_spec.train.corpus.draft_vocab import DraftVocab, choose_draft_vocab, ending_tokens
from pyllama_spec.train.corpus.store import TextSequence
from pyllama_spec.train.mtp.chains import run_chains
from pyllama_spec.train.mtp.config import MtpTrainConfig
from pyllama_spec.train.mtp.file import HeadFile, head_output
from pyllama_spec.train.mtp.head import MtpHead, shape_of
from pyllama_spec.train.progress import Reporter, SilentReporter
from pyllama_spec.train.run.chain_objective import chain_losses, count_accepted
from pyllama_spec.train.run.init_draft import InitDraft
from pyllama_spec.train.run.kind import Kind, Start
from pyllama_spec.train.run.objective import Losses
from pyllama_spec.train.run.texts import COPIED_SHARE, Texts, with_fewer_lookups


class MtpKind(Kind[MtpHead]):
    """Heads that a file has; they draft one token per step."""

    arch = "mtp"
    title = "MTP head"
    folder = "mtp"
    vocab_name = "losses and measurements look at"
    must_gain = True

    def __init__(self, config: MtpTrainConfig, source: HeadFile) -> None:
        self._config, self._source = config, source
        self.n_steps = config.fit.n_steps

    def notes(self, layers: tuple[int, ...]) -> list[str]:
        """A remark on the fixed tensors."""
        has_experts = any(name.endswith("_exps.weight") for name in self._source.facts.fixed)
        return ["its experts and their router stay as they are"] if has_experts else []

    def sizes(self, start: Start) -> dict[str, tuple[int, ...]]:
        """See Kind."""
        return shape_of(self._source.facts, len(start.vocab.d2t)).sizes()

    def vocab(
        self, sequences: Sequence[TextSequence], model: Model, init: InitDraft | None
    ) -> DraftVocab:
        """The ids in losses and measurements; see MtpFitConfig."""
        n_vocab, always = model.info.n_vocab, ending_tokens(model.vocab)
        size = max(min(self._config.fit.n_loss_vocab, n_vocab), len(set(always)))
        return choose_draft_vocab(sequences, n_vocab, size, always)

    def new_head(self, start: Start, reporter: Reporter) -> MtpHead:
        """The file's head."""
        source, weights, d2t = self._source, start.weights, start.vocab.d2t
        embedding, output = source.own_table("nextn.embed_tokens"), weights.output
        own_output = source.own_table("nextn.shared_head_head")
        output = output if own_output is None else own_output
        head = MtpHead(
            shape_of(source.facts, len(d2t)),
            weights.embedding if embedding is None else embedding, d2t, source.fixed(),
        )  # fmt: skip
        head.load_tensors({**source.trained(), "output.weight": output[d2t]})
        return head

    def known_head(self, start: Start, init: InitDraft) -> MtpHead:
        """The file's head: it is the one that the run continues."""
        return self.new_head(start, SilentReporter())

    def losses(
        self, head: MtpHead, texts: Texts, dtype: torch.dtype, generator: torch.Generator
    ) -> Losses:
        """The losses of chains from the positions where decoding asks the head."""
        fit = self._config.fit
        share = COPIED_SHARE if fit.copied_share is None else fit.copied_share
        texts = with_fewer_lookups(texts, share, generator)
        return chain_losses(
            head, run_chains(head, texts, fit.n_steps), texts, fit.n_steps, fit.step_decay, dtype,
            fit.missed_share, generator,
        )  # fmt: skip

    def n_accepted(self, head: MtpHead, texts: Texts) -> Tensor:
        """See Kind."""
        return count_accepted(head, run_chains(head, texts, self.n_steps), texts)

    def output(
        self, head: MtpHead, name: str, record: Mapping[str, Any], export_type: str
    ) -> Output:
        """The content of a file with a head alone."""
        return head_output(
            self._source, head.trained(), f"{name} {self.title}", record, export_type
        )
