"""A small model of any text architecture drafts for a larger one (arXiv 2211.17192).

It reads the text itself and needs no row of the target. Each drafted token is a decode of it, and
the first of them reads what the last round added: n drafted tokens are n decodes, however many
sequences draft together. What it has read of accepted guesses stays in its memory (memory.py). The
vocabularies may differ (vocab_map.py). A chat template in its file is never used: it continues the
text that the target reads. For a request with DraftRequest.draws its tokens are drawn from its own
distribution, each with a call of its own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyllama_spec.drafters.base import Draft, Drafter, DraftRequest
from pyllama_spec.drafters.chain import Chain, ChainDrafter
from pyllama_spec.drafters.choice import Choice
from pyllama_spec.drafters.draft_weights import note_of_few_bits, step_share, type_of_weights
from pyllama_spec.drafters.model_drafter import add_lookup, passed
from pyllama_spec.drafters.options import DraftOptions
from pyllama_spec.drafters.small_model.memory import TokenMemory
from pyllama_spec.drafters.small_model.vocab_map import VocabMap
from pyllama_spec.engine.batch import Batch
from pyllama_spec.engine.context import Context
from pyllama_spec.engine.load_errors import UnknownArchitectureError
from pyllama_spec.engine.model import Model, Progress
from pyllama_spec.errors import UnsupportedError

NAME = "draft-model"
# Tokens that are drafted per round by default: each costs a whole decode.
_MAX_DRAFT = 4
# And with a controller that ends drafts where they do not pay.
_MAX_ADAPTIVE = 8
# A token of the target that the draft lacks becomes several of its own.
_MAX_PER_GUESS = 16


class SmallModel(ChainDrafter[TokenMemory]):
    """Drafts in a chain with an ordinary model.

    Args:
        model: the small model, or the path of its GGUF.
        max_draft: the maximum number of tokens of a draft.
        n_ctx: the number of tokens of each sequence that it remembers; None for as many as the
            target. With fewer, it drops the oldest tokens and continues.
        p_min: end a draft before a token with a lower probability.
        n_gpu_layers, devices, rpc_servers, progress: arguments of Model, for a model given as a
            path.

    Raises:
        ModelLoadError: the file cannot be read, or its parts contradict each other.
        ArgumentError: the model does not generate text, or a number is out of range.

    """

    draws_tokens = True

    def __init__(
        self,
        model: Model | str | os.PathLike[str],
        max_draft: int = _MAX_DRAFT,
        *,
        n_ctx: int | None = None,
        p_min: float = 0.0,
        n_gpu_layers: int = 0,
        devices: Sequence[str] | None = None,
        rpc_servers: Sequence[str] | None = None,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(
            model, NAME, "a model that generates text", max_draft=max_draft, n_ctx=n_ctx,
            p_min=p_min, n_gpu_layers=n_gpu_layers, devices=devices, rpc_servers=rpc_servers,
            progress=progress,
        )  # fmt: skip
        self._vocab: VocabMap | None = None
        self._type = type_of_weights(self.model)

    def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        """Drafts as ChainDrafter.propose(); draws for requests that want it."""
        memory = self.memory_or_fail()
        memory.draws = {r.seq: r.draws for r in requests if r.draws is not None}
        try:
            return super().propose(requests)
        finally:
            memory.draws = {}

    def layers_read(self) -> tuple[int, ...]:
        """None: it reads only the target's text."""
        return ()

    def why_not(self, model: Model, kind: str) -> str:
        """The reason why a model cannot draft by itself."""
        info = model.info
        if info.n_target_layers:
            return f"({info.arch}) is a draft that reads rows of its target, not {kind}"
        if model.is_encoder or info.has_encoder or info.is_diffusion:
            return f"({info.arch}) is not {kind}"
        return ""

    def check(self, target: Model) -> None:
        """Raises unless the draft shares enough of the target's vocabulary.

        Raises:
            ArgumentError: the vocabularies share next to nothing; the message has the numbers.

        """
        if self._vocab is None or self._vocab.target is not target.vocab:
            # It takes about a second for 150,000 tokens; attach() comes here again.
            self._vocab = VocabMap(target.vocab, self.model.vocab)
        self._vocab.check(self.model.path.name)

    def open_memory(self, target: Context) -> TokenMemory:
        """Opens room for as many tokens as the target has, and for guesses after them."""
        assert self._vocab is not None  # attach() checks first
        params = target.params
        n_window = min(self._n_ctx or target.n_ctx_seq, target.n_ctx_seq)
        n_batch = max(min(params.n_batch, params.n_ubatch), _MAX_PER_GUESS * params.n_seq_max)
        n_guesses = self.max_draft * (1 if self._vocab.is_identity else _MAX_PER_GUESS)
        context = self.open_context(target, n_window, n_guesses, n_batch, params.n_seq_max)
        self._step = Batch(n_batch)
        self.step_share = step_share(self.model, target.model)
        if self._type is not None:
            less = "it may agree with the target less often than with 8 bits"
            self.add_note(note_of_few_bits("the draft", *self._type, less))
        return TokenMemory(context, self._vocab, n_window + n_guesses, n_guesses)

    def can_draft(self, request: DraftRequest) -> bool:
        """Whether tokens are requested and the draft can read the text."""
        return super().can_draft(request) and self.memory_or_fail().can_ask(request.seq)

    def go_on(self, going: list[Chain], errors: dict[int, Exception]) -> None:
        """Drafts all further tokens in one engine call, unless a prior or chance chooses."""
        if any(c.request.prior is not None or c.request.draws is not None for c in going):
            super().go_on(going, errors)
        elif going:
            memory = self.memory_or_fail()

            def goes_on(i: int, choice: Choice) -> bool:
                going[i].choice = choice
                return bool(passed([going[i]], self.extend, errors))

            memory.draft_on({c.seq: c.ids[-1] for c in going}, goes_on)

    def step_all(self, chains: Sequence[Chain]) -> None:
        """Feeds each chain's newest token; ends a chain whose token the draft lacks (a prior's)."""
        memory = self.memory_or_fail()
        guesses = [(c.seq, memory.vocab.to_draft(c.ids[-1])[:_MAX_PER_GUESS]) for c in chains]
        known = [(seq, ids) for seq, ids in guesses if ids]
        choices = memory.guess(known, self._step) if known else {}
        for chain in chains:
            chain.choice = choices.get(chain.seq)

    def describe(self) -> dict[str, Any]:
        """The draft's file, sizes, and share of the target's vocabulary."""
        facts = super().describe()
        del facts["target_layers"], facts["n_output"]
        facts["reads"] = "the text"
        facts["weights"] = self._type.name if self._type is not None else ""
        vocab = self._vocab
        if vocab is not None:
            facts["vocabulary"] = "the target's" if vocab.is_identity else "another one"
            facts["shared_tokens"], facts["target_tokens"] = vocab.n_shared, vocab.n_target
        return facts


def open_small_model(path: Path, options: DraftOptions) -> Drafter:
    """Opens a model, with lookups and n-grams beside it unless options.lookup is 0.

    Raises:
        ModelLoadError: the file cannot be read, or its parts contradict each other.
        ArgumentError: the model does not generate text.
        UnsupportedError: the engine has no such architecture.

    """
    try:
        model = SmallModel(path, options.length(_MAX_DRAFT, _MAX_ADAPTIVE), **options.of_file())
    except UnknownArchitectureError as error:
        raise UnsupportedError(
            f"drafts of kind {error.arch!r} are not supported by this version ({path.name}); "
            'draft="prompt-lookup" needs no file'
        ) from None
    return add_lookup(model, options)
