"""Embeddings of texts: from embedding models, and from any other."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from pyllama_spec.chat.prompts import LONG_TEXT, at_least, check_fits
from pyllama_spec.engine import Batch, Context, ContextParams, Model
from pyllama_spec.engine.context_params import POOLING
from pyllama_spec.errors import (
    ArgumentError,
    ClosedError,
    ContextFullError,
    EngineError,
    OutOfMemoryError,
    PyllamaSpecError,
    RemoteError,
    UnsupportedError,
    warn,
)
from pyllama_spec.requests.request_lock import RequestLock

# A text, or its ids.
Text = str | Sequence[int]
# The engine's LLAMA_MAX_SEQ.
_MAX_SEQUENCES = 256

# The maximum number of contexts for embeddings that may fail, one after the other.
_MAX_DROPPED = 8
# The number of pooling "rank" in a file.
_RANK = POOLING["rank"]


class Embedder:
    """A context of a model that gives embeddings.

    On the CPU each text is computed by itself: beside others sums are made in another order, and
    each token is compared with those of all texts, which takes longer than the batch saves. On
    devices as many as fit are computed at once, and the last bits depend on their company.
    """

    def __init__(self, model: Model, params: ContextParams) -> None:
        self._vocab = model.vocab
        n_ctx = params.n_ctx or model.info.n_ctx_train
        n_together = min(params.n_batch, n_ctx, _MAX_SEQUENCES) if model.is_on_gpu else 1
        # An encoder takes a batch in one piece, and every token of it gives a row.
        try:
            self.context = Context(
                model, params, embeddings=True, kv_unified=True, n_outputs_max=0,
                n_ubatch=params.n_batch, n_seq_max=n_together, target_layers=(),
            )  # fmt: skip
        except OutOfMemoryError as error:
            what = f"{model.path.name}: the KV cache of embeddings for {n_ctx} tokens"
            raise error.of(what, ["n_ctx"]) from None
        self._lock = RequestLock(self.context.cancel)
        self._encodes = model.info.has_encoder or not self.context.has_memory
        self._batch = Batch(self.context.n_batch)

    @property
    def gives_each_token(self) -> bool:
        """Whether a text gets a vector per token instead of one vector."""
        return self.context.pooling == "none"

    @property
    def n_batch(self) -> int:
        """The maximum number of tokens of a text."""
        return min(self.context.n_batch, self.context.n_ctx)

    def embed(
        self, texts: Sequence[Text], *, normalize: bool, truncate: bool
    ) -> tuple[list[Any], int]:
        """A list of [n_embd] floats per text, or per token without pooling; and the tokens read."""
        # Before the lock: in a forked child a thread may hold it that is not there.
        self.context.check_process()
        with self._lock.exclusive():
            try:
                return self._embed(texts, normalize=normalize, truncate=truncate)
            except (EngineError, OutOfMemoryError, RemoteError):
                self.context.find_failure()
                raise

    def _embed(
        self, texts: Sequence[Text], *, normalize: bool, truncate: bool
    ) -> tuple[list[Any], int]:
        vectors: list[Any] = []
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
        if isinstance(text, str):
            if not truncate and len(text) >= LONG_TEXT:
                n = self._vocab.fewest_tokens(text)
                self._check_length(n, at_least(n))
            tokens = self._vocab.tokenize(text)
        elif is_ids(text):
            if truncate:
                text = text[: self.n_batch]
            self._check_length(len(text))
            tokens = [int(token) for token in text]
            self._vocab.check_ids(tokens, "input")
        else:
            raise ArgumentError("input", text, "a text or a list of token ids")
        if not tokens:
            raise ArgumentError("input", text, "a text with tokens, as the model adds none")
        if not truncate:
            self._check_length(len(tokens))
        return tokens[: self.n_batch]

    def _check_length(self, n: int, how: str = "") -> None:
        if n > self.n_batch:
            raise ContextFullError(
                how, n_tokens=n, n_ctx=self.n_batch, param="input",
                remedy="shorten the text or give `truncate=True`",
                setup="choose a larger `n_ctx` and `n_batch`",
            )  # fmt: skip

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
        """Cancels the running call, from any thread."""
        if not self.context.is_forked:
            self._lock.cancel()

    def close(self) -> None:
        """Cancels the running call, and frees the context."""
        if self.context.is_forked or self._lock.close():
            self.context.close()


class Embeddings:
    """The embeddings of an open model; the first text opens their context."""

    def __init__(self, model: Model, params: ContextParams, is_wanted: bool) -> None:
        self._model, self._params, self._is_wanted = model, params, is_wanted
        self._embedder: Embedder | None = None
        self._dropping, self._n_dropped = threading.Lock(), 0
        self._loss: RemoteError | None = None

    def embed(
        self, texts: object, model_path: str, *, normalize: bool, truncate: bool
    ) -> tuple[list[Any], int]:
        """See Llama.embed: a vector or more for each text, and how many tokens were read."""
        self._check_open(model_path)
        with self._noting_loss():
            embedder = self._opened(model_path)
            return embedder.embed(texts_of(texts), normalize=normalize, truncate=truncate)

    def _opened(self, model_path: str) -> Embedder:
        if not self._is_wanted:
            raise UnsupportedError(
                "this model was opened without embeddings",
                setup="open the model again with `embedding=True`",
            )
        embedder = self._embedder
        if embedder is not None and embedder.context.has_failed:
            self._drop(embedder)
            embedder = self._embedder
        if embedder is None:
            mine = Embedder(self._model, self._params)
            if mine.gives_each_token and self._params.pooling is None:
                warn(
                    f"{self._model.path.name} names no pooling, as a model that is for text: a "
                    'text gives a vector for each of its tokens. Llama(pooling_type="mean"), or '
                    '"last", gives one for the text; "none" says that each token\'s is meant',
                )
            # Two threads may come here at once: one context serves both.
            with self._dropping:
                embedder = self._embedder = self._embedder or mine
            if embedder is not mine:
                mine.close()
            if self._model.is_closed:  # meanwhile, by a close() that saw no context to free
                embedder.close()
                self._check_open(model_path)
        return embedder

    def _drop(self, failed: Embedder) -> None:
        """Has the next call open another context: none keeps anything between calls."""
        with self._dropping:
            # The engine does not free a context that failed: not for every text without memory.
            if self._embedder is not failed or self._n_dropped >= _MAX_DROPPED:
                return
            self._embedder = None
            self._n_dropped += 1  # is_usable, which has no lock, reads it first
        failed.close()

    @contextmanager
    def _noting_loss(self) -> Iterator[None]:
        try:
            yield
        except RemoteError as error:
            self._loss = RemoteError(str(error))
            raise
        except ClosedError as error:
            raise self._model.closed_error(str(error)) from None

    def rank(
        self, query: object, documents: object, model_path: str, *, truncate: bool
    ) -> list[float]:
        """See Llama.rank."""
        self._check_open(model_path)
        pairs = Pairs(self._model)
        if not isinstance(query, str):
            raise ArgumentError("query", query, str)
        if isinstance(documents, (str, bytes)) or not isinstance(documents, Sequence):
            raise ArgumentError("documents", documents, "a list of texts")
        for i, document in enumerate(documents):
            if not isinstance(document, str):
                raise ArgumentError(f"documents[{i}]", document, str)
        with self._noting_loss():
            embedder = self._opened(model_path)
        # pooling_type="rank" for another model would give a number of its rows, and no score.
        own = self._model.metadata.get(f"{self._model.info.arch}.pooling_type")
        if embedder.context.pooling != "rank" or own != str(_RANK):
            raise UnsupportedError(
                f"{model_path} does not score pairs (its pooling is "
                f"{embedder.context.pooling!r}): rank() is for rerankers, whose files say pooling "
                'type "rank"; compare embeddings of this one'
            )
        if not documents:
            return []
        most = embedder.n_batch if truncate else None
        for text in (query, *(() if truncate else documents)):
            check_fits(self._model.vocab, text, embedder.n_batch)
        tokens = [pairs.tokens(query, document, most) for document in documents]
        with self._noting_loss():
            rows, _ = embedder.embed(tokens, normalize=False, truncate=False)
        return [float(row[0]) for row in rows]

    def _check_open(self, model_path: str) -> None:
        if self._model.is_closed:
            raise self._model.closed_error(f"the model {model_path} is closed; load it again")

    @property
    def failure(self) -> PyllamaSpecError | None:
        """The loss of a server with the model's layers, or the failure of the last context."""
        is_last, embedder = self._n_dropped >= _MAX_DROPPED, self._embedder
        return self._loss or (embedder.context.failure if is_last and embedder else None)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the context's KV cache: 0 before the first text and after close()."""
        embedder = self._embedder
        if embedder is None or embedder.context.is_closed:
            return 0
        return embedder.context.memory_bytes

    def cancel(self) -> None:
        """Cancels the running call, from any thread."""
        if self._embedder is not None:
            self._embedder.cancel()

    def close(self) -> None:
        """Cancels the running call, and frees the context."""
        if self._embedder is not None:
            self._embedder.close()


def is_ids(text: object) -> TypeGuard[Sequence[int]]:
    """Whether a list holds token ids, not texts."""
    if isinstance(text, np.ndarray):
        return text.ndim == 1 and text.dtype.kind in "iu"
    if isinstance(text, (str, bytes)) or not isinstance(text, Sequence):
        return False
    if isinstance(text, range):
        return True  # of any length
    return all(isinstance(t, (int, np.integer)) and not isinstance(t, bool) for t in text)


def is_one_text(texts: object) -> bool:
    """Whether embed() got one text, as a str or as ids, not a list of texts."""
    return isinstance(texts, str) or (is_ids(texts) and len(texts) > 0)


def texts_of(texts: object) -> list[Text]:
    """The arguments of embed() as a list; reading a text checks its type."""
    if is_one_text(texts):
        return [texts]  # type: ignore[list-item]
    try:
        return list(texts)  # type: ignore[call-overload, no-any-return]
    except TypeError:
        raise ArgumentError("input", texts, "a text or a list of them") from None


class Pairs:
    """The tokens of a query and a document, as a reranker reads them.

    By the template "rerank" of the model's file, with {query} and {document} in it; else both with
    the tokens that the vocabulary wants around and between them. What the caller wrote is never a
    control token.
    """

    def __init__(self, model: Model) -> None:
        self._vocab, self._form = model.vocab, model.chat_template("rerank")

    def tokens(self, query: str, document: str, most: int | None) -> list[int]:
        """The tokens of a pair, the document cut to `most` in all; None for no limit."""
        tokens = self._pair(query, document)
        if most is None or len(tokens) <= most:
            return tokens
        ids = self._vocab.tokenize(document, add_special=False)
        while len(tokens) > most and ids:
            # The end may join with what follows: a token more or less.
            del ids[len(ids) - min(max(len(tokens) - most, 1), len(ids)) :]
            cut = self._vocab.detokenize(ids).decode(errors="ignore")
            tokens = self._pair(query, cut)
        if len(tokens) > most:
            raise ContextFullError(
                " by the query of rank()", n_tokens=len(tokens), n_ctx=most, param="query",
                remedy="shorten it", setup="choose a larger `n_ctx` and `n_batch`",
            )  # fmt: skip
        return tokens

    def _pair(self, query: str, document: str) -> list[int]:
        vocab = self._vocab
        if self._form is not None:
            return self._by_template(self._form, query, document)
        end = [vocab.eos if vocab.eos is not None else vocab.special("sep")]
        ends = end if vocab.adds_eos else []
        parts: list[list[int | None] | list[int]] = [
            [vocab.bos] if vocab.adds_bos else [], vocab.tokenize(query, add_special=False), ends,
            [vocab.special("sep")] if vocab.adds_sep else [],
            vocab.tokenize(document, add_special=False), ends,
        ]  # fmt: skip
        return [token for part in parts for token in part if token is not None]

    def _by_template(self, form: str, query: str, document: str) -> list[int]:
        from pyllama_spec.chat.control_tokens import tokenize_chat
        from pyllama_spec.chat.prompt_provenance import PromptProvenance

        text, spans = "", []
        for part in re.split(r"(\{query\}|\{document\})", form):
            caller = {"{query}": query, "{document}": document}.get(part)
            if caller:
                spans.append((len(text), len(text) + len(caller)))
            text += part if caller is None else caller
        provenance = PromptProvenance("all", tuple(spans), caller_strings=(query, document))
        return tokenize_chat(self._vocab, text, provenance)


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
