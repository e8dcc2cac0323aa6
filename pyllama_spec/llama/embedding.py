"""Texts as vectors: of models that were made for it, and of any other."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pyllama_spec.engine import Batch, Context, ContextParams, Model
from pyllama_spec.engine.checks import shown
from pyllama_spec.errors import ArgumentError, ClosedError, ContextFullError, UnsupportedError
from pyllama_spec.requests.request_lock import RequestLock

# The engine's LLAMA_MAX_SEQ.
_MAX_SEQUENCES = 256


class Embedder:
    """A context of a model that gives embeddings, of several texts at once.

    Args:
        model: the model.
        params: of the context; n_ctx counts for a batch, and n_batch is what a batch takes.

    """

    def __init__(self, model: Model, params: ContextParams) -> None:
        self._vocab = model.vocab
        n_ctx = params.n_ctx or model.info.n_ctx_train
        # An encoder takes a batch in one piece, and every token of it gives a row.
        self.context = Context(
            model, params, embeddings=True, kv_unified=True, n_outputs_max=0,
            n_ubatch=params.n_batch, n_seq_max=min(params.n_batch, n_ctx, _MAX_SEQUENCES),
            target_layers=(),
        )  # fmt: skip
        self._lock = RequestLock(self.context.cancel)
        self._encodes = model.info.has_encoder or not self.context.has_memory
        self._batch = Batch(self.context.n_batch)

    @property
    def gives_each_token(self) -> bool:
        """Whether a text has a vector for each of its tokens, and none of its own."""
        return self.context.pooling == "none"

    @property
    def n_batch(self) -> int:
        """The most tokens of a text."""
        return min(self.context.n_batch, self.context.n_ctx)

    def embed(
        self, texts: Sequence[str], *, normalize: bool, truncate: bool
    ) -> tuple[list[Any], int]:
        """A vector for each text, or one for each of its tokens where the model does not pool.

        Args:
            texts: what to embed.
            normalize: to a length of 1.
            truncate: cut texts that are too long; else refuse them.

        Returns:
            For each text a list of [n_embd] floats, or such a list per token; and how many tokens
            were read.

        Raises:
            ArgumentError: one is no text, or has no tokens.
            ContextFullError: one is too long.
            CancelledError: cancel() was called meanwhile.

        """
        # Before the lock: in a forked child a thread may hold it that is not there.
        self.context.check_process()
        vectors: list[Any] = []
        with self._lock.exclusive():
            tokenized = [self._tokens(text, truncate) for text in texts]
            group: list[list[int]] = []
            n = 0
            for tokens in tokenized:
                if n + len(tokens) > self.n_batch or len(group) >= self.context.n_seq_max:
                    vectors += self._rows(group, normalize)
                    group, n = [], 0
                group.append(tokens)
                n += len(tokens)
            vectors += self._rows(group, normalize)
            self.context.pause_threads()
        return vectors, sum(map(len, tokenized))

    def _tokens(self, text: object, truncate: bool) -> list[int]:
        if not isinstance(text, str):
            raise ArgumentError(f"embed takes texts, not {shown(text)}")
        tokens = self._vocab.tokenize(text)
        if not tokens:
            raise ArgumentError("a text to embed has no tokens, and the model adds none")
        if len(tokens) > self.n_batch and not truncate:
            raise ContextFullError(
                f"a text has {len(tokens)} tokens, more than the {self.n_batch} that n_ctx and "
                "n_batch have room for; choose larger ones, or truncate=True"
            )
        return tokens[: self.n_batch]

    def _rows(self, group: Sequence[Sequence[int]], normalize: bool) -> list[Any]:
        if not group:
            return []
        context, batch = self.context, self._batch
        if not self._encodes:
            context.memory.clear()
        batch.clear()
        for seq_id, tokens in enumerate(group):
            batch.extend(tokens, 0, seq_id, output_all=True)
        context.decode(batch, encode=self._encodes)
        if context.pooling != "none":
            rows = [np.array(context.embeddings_of(i)) for i in range(len(group))]
            return [_scaled(row, normalize).tolist() for row in rows]
        vectors, at = [], 0
        for tokens in group:
            each = (np.array(context.embeddings(at + i)) for i in range(len(tokens)))
            vectors.append([_scaled(row, normalize).tolist() for row in each])
            at += len(tokens)
        return vectors

    def cancel(self) -> None:
        """Ends what runs, from any thread."""
        if not self.context.is_forked:
            self._lock.cancel()

    def close(self) -> None:
        """Ends what runs, and frees the context."""
        if self.context.is_forked or self._lock.close():
            self.context.close()


class Embeddings:
    """The embeddings of an open model: their context is opened when the first text comes.

    Args:
        model: the model.
        params: of the target's context.
        is_wanted: whether the model was opened to give them.

    """

    _embedder: Embedder | None = None

    def __init__(self, model: Model, params: ContextParams, is_wanted: bool) -> None:
        self._model, self._params, self._is_wanted = model, params, is_wanted

    def embed(
        self, texts: object, model_path: str, *, normalize: bool, truncate: bool
    ) -> tuple[list[Any], int]:
        """See Llama.embed: a vector or more for each text, and how many tokens were read."""
        self._check_open(model_path)
        if not self._is_wanted:
            raise UnsupportedError(
                "embeddings are for a Llama that was opened with embedding=True; open it so"
            )
        listed, embedder = texts_of(texts), self._embedder
        if embedder is None:
            mine = Embedder(self._model, self._params)
            if mine.gives_each_token and self._params.pooling is None:
                warnings.warn(
                    f"{self._model.path.name} names no pooling, as a model that is for text: a "
                    'text gives a vector for each of its tokens. Llama(pooling_type="mean"), or '
                    '"last", gives one for the text; "none" says that each token\'s is meant',
                    stacklevel=3,
                )
            # Two threads may come here at once: one context serves both.
            embedder = self.__dict__.setdefault("_embedder", mine)
            if embedder is not mine:
                mine.close()
            if self._model.is_closed:  # meanwhile, by a close() that saw no context to free
                embedder.close()
                self._check_open(model_path)
        return embedder.embed(listed, normalize=normalize, truncate=truncate)

    def _check_open(self, model_path: str) -> None:
        if self._model.is_closed:
            raise ClosedError(f"the model {model_path} is closed; load it again")

    def cancel(self) -> None:
        """Ends what runs, from any thread."""
        if self._embedder is not None:
            self._embedder.cancel()

    def close(self) -> None:
        """Ends what runs, and frees the context."""
        if self._embedder is not None:
            self._embedder.close()


def texts_of(texts: object) -> list[str]:
    """What embed() was given, as a list; whether each is a text is seen when it is read.

    Raises:
        ArgumentError: it is neither a text nor a list.

    """
    if isinstance(texts, str):
        return [texts]
    try:
        return list(texts)  # type: ignore[call-overload, no-any-return]
    except TypeError:
        raise ArgumentError(f"embed takes a text or a list of them, not {shown(texts)}") from None


def _scaled(row: npt.NDArray[np.float32], normalize: bool) -> npt.NDArray[np.float32]:
    if not normalize:
        return row
    norm = float(np.linalg.norm(row))
    return row if norm == 0.0 else np.asarray(row / norm)


def response(data: Sequence[Any], n_tokens: int, model: str) -> dict[str, Any]:
    """OpenAI's object of a list of embeddings."""
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "embedding": row, "index": i} for i, row in enumerate(data)
        ],
        "model": model,
        "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
    }
