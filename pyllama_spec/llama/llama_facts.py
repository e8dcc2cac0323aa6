"""A Llama's facts: vocabulary, sizes, the file's keys, the options it was opened with."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

from pyllama_spec.engine import Context, Model
from pyllama_spec.llama.embedding import Embeddings
from pyllama_spec.llama.open_model import OpenModel
from pyllama_spec.llama.open_options import OpenOptions
from pyllama_spec.llama.settings import Settings
from pyllama_spec.llama.tokenizer import LlamaTokenizer, VocabTexts
from pyllama_spec.requests.generation import Runtime
from pyllama_spec.speculative.target_batch import DecodeCounts


class LlamaFacts:
    """The read-only part of Llama, for requests and programs."""

    _opened: OpenModel
    _texts: VocabTexts
    _settings: Settings
    _embeddings: Embeddings
    _opened_with: OpenOptions

    @property
    def file_keywords(self) -> dict[str, object]:
        """The keywords that may name a file, each with its value."""
        names = ("model_path", "draft", "lora_path", "draft_memory")
        return {name: getattr(self._opened_with, name) for name in names}

    # ---- the vocabulary

    def tokenize(self, text: str | bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Token ids of a text.

        Args:
            text: the text in UTF-8.
            add_bos: whether to add what the model expects around a text, such as its BOS token.
            special: whether names of control tokens are read as those tokens.

        """
        return self._texts.tokenize(text, add_bos, special)

    def detokenize(
        self,
        tokens: Sequence[int],
        prev_tokens: Sequence[int] | None = None,
        special: bool = False,
    ) -> bytes:
        """The bytes of a run of tokens; control tokens are empty unless `special`.

        At the beginning of a text, which a BOS token says, the space is left out that vocabularies
        of SentencePiece put before a first word.

        Raises:
            ArgumentError: an id is outside the vocabulary.

        """
        return self._texts.detokenize(tokens, prev_tokens, special)

    # ---- the model

    def n_ctx(self) -> int:
        """The maximum number of tokens of prompt and text together."""
        return self._runtime.context.n_ctx_seq

    def n_vocab(self) -> int:
        """The size of the vocabulary."""
        return self._opened.model.info.n_vocab

    def n_embd(self) -> int:
        """The width of the model's rows, and of its embeddings."""
        return self._opened.model.info.n_embd

    def token_bos(self) -> int:
        """The id of the BOS token; -1 if the model has none."""
        return _or_none(self._opened.model.vocab.bos)

    def token_eos(self) -> int:
        """The id of the EOS token; -1 if the model has none."""
        return _or_none(self._opened.model.vocab.eos)

    def token_nl(self) -> int:
        """The id of the newline token; -1 if the model has none."""
        return _or_none(self._opened.model.vocab.special("nl"))

    def tokenizer(self) -> LlamaTokenizer:
        """The vocabulary as an object."""
        return LlamaTokenizer(self)

    @property
    def tokenizer_(self) -> LlamaTokenizer:
        """The vocabulary under llama-cpp-python's attribute name."""
        return self.tokenizer()

    @property
    def metadata(self) -> dict[str, str]:
        """The file's keys and values as text."""
        return self._opened.model.metadata

    @property
    def model(self) -> Model:
        """The engine's model, for direct access."""
        return self._opened.model

    @property
    def context(self) -> Context:
        """The engine's context. Do not use it while a generation runs."""
        return self._runtime.context

    @property
    def _is_recurrent(self) -> bool:
        return self._opened.model.info.is_recurrent

    @property
    def _is_hybrid(self) -> bool:
        return self._opened.model.info.is_hybrid

    @property
    def _ctx(self) -> SimpleNamespace:
        is_open_without = self._opened.generating is None
        return SimpleNamespace(ctx=self.model if is_open_without else self.context)

    @property
    def drafter_name(self) -> str:
        """The drafter's name in the statistics."""
        return self._opened.drafter_name

    @property
    def memory_bytes(self) -> int:
        """Bytes of weights and KV caches on all devices.

        Those of a draft count that was opened with the model, and those of the context for
        embeddings from the first text on. Buffers of a decode, and copies that prefix_cache_bytes
        bounds, come on top.
        """
        return self._opened.memory_bytes + self._embeddings.memory_bytes

    @property
    def is_usable(self) -> bool:
        """Whether requests can be computed: False once the model is closed or has failed.

        The loss of an RPC server makes it unusable. So does an engine failure in the middle of a
        decode, as without memory: it leaves the context in an unknown state. Then reopen() helps.
        Embeddings have a context of their own: eight that failed are replaced, and not the ninth.
        """
        runtime = self._opened.generating
        if self._embeddings.failure is not None:
            return False
        if runtime is None:
            return not self._opened.model.is_closed
        return runtime.runner.is_usable()

    @property
    def decode_counts(self) -> DecodeCounts:
        """Counts of the model's decodes; they grow while requests run."""
        return self._runtime.round.decode_counts

    @property
    def n_parallel(self) -> int:
        """The maximum number of requests computed together."""
        return self._runtime.context.n_seq_max

    # ---- how it was opened

    @property
    def n_batch(self) -> int:
        """Tokens per decode; at most the context length."""
        return self._settings.n_batch

    @property
    def n_threads(self) -> int:
        """The number of CPU threads for a single token."""
        return self.context_params.n_threads  # type: ignore[no-any-return]

    @property
    def n_threads_batch(self) -> int:
        """The number of CPU threads for a batch."""
        return self.context_params.n_threads_batch  # type: ignore[no-any-return]

    @property
    def context_params(self) -> SimpleNamespace:
        """A copy of the context's parameters, as the engine's numbers."""
        return self._settings.context_params(self.n_batch)

    @property
    def model_params(self) -> SimpleNamespace:
        """A copy of the model's parameters, as the engine's numbers."""
        return self._settings.model_params()

    def pooling_type(self) -> int:
        """The engine's number of the pooling type: 0 none, 1 mean ..."""
        return self._settings.pooling_type(self.metadata)

    @property
    def _runtime(self) -> Runtime:
        return self._opened.runtime


def _or_none(token: int | None) -> int:
    return -1 if token is None else token
