"""Embeddings of texts: from embedding models, and from any other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from pyllama_spec.chat.template import LONG_TEXT, at_least, check_fits
from pyllama_spec.engine import Batch, Context, ContextParams, Model, Vocab
from pyllama_spec.engine.context_params import POOLING
from pyllama_spec.errors import (
    ArgumentError,
    CancelledError,
    ContextFullError,
    EngineError,
    OutOfMemoryError,
    PyllamaSpecError,
    RemoteError,
    UnsupportedError,
    warn,
)
from pyllama_spec.llama.open_options import MAX_SEQUENCES
from pyllama_spec.requests.runner import Runner

# A text, or its ids.
Text = str | Sequence[int]


class Embeddings:
    """The embeddings of an open model, by a context of its own, which the first text opens.

    They take turns with the rounds of its requests, batch by batch: two at once would have more
    threads than cores.
    On the CPU each text is computed by itself: beside others sums are made in another order, and
    each token is compared with those of all texts, which takes longer than the batch saves. On
    devices as many as fit are computed at once, and the last bits depend on their company.
    """

    def __init__(
        self, model: Model, params: ContextParams, runner: Runner, is_wanted: bool
    ) -> None:
        self._model, self._params, self._is_wanted = model, params, is_wanted
        self._runner, self._n_cancels = runner, 0
        self.context: Context | None = None
        self._loss: RemoteError | None = None

    # ---- the context

    @contextmanager
    def _turn(self, n_cancels: int | None = None) -> Iterator[Context]:
        """The context for this thread; the first text opens it.

        `n_cancels` is the number of cancel() calls when the caller's call began.
        """
        try:
            with self._runner.exclusive(self._opened) as context:
                if n_cancels not in (None, self._n_cancels):
                    raise CancelledError("the embedding was cancelled")
                try:
                    yield context
                except (EngineError, OutOfMemoryError, RemoteError):
                    context.find_failure()
                    raise
                finally:
                    context.pause_threads()
        except RemoteError as error:
            self._loss = RemoteError(str(error))
            raise

    def _check(self) -> None:
        if not self._is_wanted:
            raise UnsupportedError(
                "this model was opened without embeddings",
                setup="open the model again with `embedding=True`",
            )

    def _opened(self) -> Context:
        context = self.context
        if context is None:
            self.context = context = self._open()
            if context.pooling == "none" and self._params.pooling is None:
                warn(
                    f"{self._model.path.name} names no pooling, as a model that is for text: a "
                    'text gives a vector for each of its tokens. Llama(pooling_type="mean"), or '
                    '"last", gives one for the text; "none" says that each token\'s is meant',
                )
        return context

    def _open(self) -> Context:
        model, params = self._model, self._params
        n_ctx = params.n_ctx or model.info.n_ctx_train
        n_together = min(params.n_batch, n_ctx, MAX_SEQUENCES) if model.is_on_gpu else 1
        # An encoder takes a batch in one piece, and every token of it gives a row.
        try:
            return Context(
                model, params, embeddings=True, kv_unified=True, n_outputs_max=0,
                n_ubatch=params.n_batch, n_seq_max=n_together, target_layers=(),
            )  # fmt: skip
        except OutOfMemoryError as error:
            what = f"{model.path.name}: the KV cache of embeddings for {n_ctx} tokens"
            raise error.of(what, ["n_ctx"]) from None

    @property
    def failure(self) -> PyllamaSpecError | None:
        """The loss of a server with the model's layers, or the failure of the context."""
        return self._loss or (self.context.failure if self.context else None)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the context's KV cache: 0 before the first text and after close()."""
        context = self.context
        return 0 if context is None or context.is_closed else context.memory_bytes

    def cancel(self) -> None:
        """Ends the running calls between two batches, from any thread."""
        self._n_cancels += 1

    def close(self) -> None:
        """Frees the context, once the runner is closed."""
        if self.context is not None:
            self.context.close()

    # ---- vectors and scores

    def embed(self, texts: object, *, normalize: bool, truncate: bool) -> tuple[list[Any], int]:
        """See Llama.embed: a vector or more for each text, and how many tokens were read."""
        self._check()
        n_cancels = self._n_cancels
        with self._turn() as context:
            n_max, n_together = min(context.n_batch, context.n_ctx), context.n_seq_max
        tokenized = [self._tokens(text, n_max, truncate) for text in texts_of(texts)]
        vectors: list[Any] = []
        for group in _groups(tokenized, n_max, n_together):
            with self._turn(n_cancels) as context:
                vectors += self._rows(context, group, normalize)
        return vectors, sum(map(len, tokenized))

    def _tokens(self, text: object, n_max: int, truncate: bool) -> list[int]:
        vocab = self._model.vocab
        if isinstance(text, str):
            if not truncate and len(text) >= LONG_TEXT:
                n = vocab.fewest_tokens(text)
                _check_length(n, n_max, at_least(n))
            tokens = vocab.tokenize(text)
        elif is_ids(text):
            if truncate:
                text = text[:n_max]
            _check_length(len(text), n_max)
            tokens = [int(token) for token in text]
            vocab.check_ids(tokens, "input")
        else:
            raise ArgumentError("input", text, "a text or a list of token ids")
        if not tokens:
            raise ArgumentError("input", text, "a text with tokens, as the model adds none")
        if not truncate:
            _check_length(len(tokens), n_max)
        return tokens[:n_max]

    def _rows(self, context: Context, group: Sequence[Sequence[int]], normalize: bool) -> list[Any]:
        """A list of [n_embd] floats per text, or per token without pooling."""
        batch = Batch(sum(map(len, group)))
        encodes = self._model.info.has_encoder or not context.has_memory
        if not encodes:
            context.memory.clear()
        for seq_id, tokens in enumerate(group):
            batch.extend(tokens, 0, seq_id, output_all=True)
        context.decode(batch, encode=encodes)
        if context.pooling != "none":
            return [_scaled(context.embeddings_of(i), normalize) for i in range(len(group))]
        vectors, at = [], 0
        for tokens in group:
            n = len(tokens)
            vectors.append([_scaled(context.embeddings(at + i), normalize) for i in range(n)])
            at += n
        return vectors

    def rank(self, query: str, documents: Sequence[str], *, truncate: bool) -> list[float]:
        """See Llama.rank."""
        self._check()
        if isinstance(documents, str):
            raise ArgumentError("documents", documents, "a list of texts")
        # pooling_type="rank" for another model would give a number of its rows, and no score.
        own = self._model.metadata.get(f"{self._model.info.arch}.pooling_type")
        with self._turn() as context:
            if context.pooling != "rank" or own != str(POOLING["rank"]):
                raise UnsupportedError(
                    f"{self._model.path.name} does not score pairs (its pooling is "
                    f"{context.pooling!r}): rank() is for rerankers, whose files say pooling "
                    'type "rank"; compare embeddings of this one'
                )
            n_max = min(context.n_batch, context.n_ctx)
        for text in (query, *(() if truncate else documents)):
            check_fits(self._model.vocab, text, n_max)
        most = n_max if truncate else None
        tokens = [pair_tokens(self._model, query, document, most) for document in documents]
        rows, _ = self.embed(tokens, normalize=False, truncate=False) if tokens else ([], 0)
        return [float(row[0]) for row in rows]


def _groups(texts: Sequence[list[int]], n_max: int, n_together: int) -> Iterator[list[list[int]]]:
    """The texts in groups that one batch has room for."""
    group: list[list[int]] = []
    for tokens in texts:
        if group and (sum(map(len, group)) + len(tokens) > n_max or len(group) >= n_together):
            yield group
            group = []
        group.append(tokens)
    if group:
        yield group


def _check_length(n: int, n_max: int, how: str = "") -> None:
    if n > n_max:
        raise ContextFullError(
            how, n_tokens=n, n_ctx=n_max, param="input",
            remedy="shorten the text or give `truncate=True`",
            setup="choose a larger `n_ctx` and `n_batch`",
        )  # fmt: skip


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


def pair_tokens(model: Model, query: str, document: str, most: int | None) -> list[int]:
    """The tokens of a pair, as a reranker reads them, the document cut to `most` in all.

    By the template "rerank" of the model's file, with {query} and {document} in it; else both with
    the tokens that the vocabulary wants around and between them. What the caller wrote is never a
    control token.
    """
    tokens, vocab = _pair(model, query, document), model.vocab
    if most is None or len(tokens) <= most:
        return tokens
    ids = vocab.tokenize(document, add_special=False)
    while len(tokens) > most and ids:
        # The end may join with what follows: a token more or less.
        del ids[len(ids) - min(max(len(tokens) - most, 1), len(ids)) :]
        tokens = _pair(model, query, vocab.detokenize(ids).decode(errors="ignore"))
    if len(tokens) > most:
        raise ContextFullError(
            " by the query of rank()", n_tokens=len(tokens), n_ctx=most, param="query",
            remedy="shorten it", setup="choose a larger `n_ctx` and `n_batch`",
        )  # fmt: skip
    return tokens


def _pair(model: Model, query: str, document: str) -> list[int]:
    vocab, form = model.vocab, model.chat_template("rerank")
    if form is not None:
        return _pair_by_template(vocab, form, query, document)
    end = [vocab.eos if vocab.eos is not None else vocab.special("sep")]
    ends = end if vocab.adds_eos else []
    parts: list[list[int | None] | list[int]] = [
        [vocab.bos] if vocab.adds_bos else [], vocab.tokenize(query, add_special=False), ends,
        [vocab.special("sep")] if vocab.adds_sep else [],
        vocab.tokenize(document, add_special=False), ends,
    ]  # fmt: skip
    return [token for part in parts for token in part if token is not None]


def _pair_by_template(vocab: Vocab, form: str, query: str, document: str) -> list[int]:
    from pyllama_spec.chat.prompt_provenance import PromptProvenance, tokenize_chat

    text, spans = "", []
    for part in re.split(r"(\{query\}|\{document\})", form):
        caller = {"{query}": query, "{document}": document}.get(part)
        if caller:
            spans.append((len(text), len(text) + len(caller)))
        text += part if caller is None else caller
    provenance = PromptProvenance("all", tuple(spans), caller_strings=(query, document))
    return tokenize_chat(vocab, text, provenance)


def _scaled(row: npt.NDArray[np.float32], normalize: bool) -> list[float]:
    """A copy of a row as floats, of length 1 if wanted."""
    norm = float(np.linalg.norm(row)) if normalize else 0.0
    return np.asarray(row if norm == 0.0 else row / norm).tolist()  # type: ignore[no-any-return]


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
