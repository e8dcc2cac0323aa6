"""Llama: a model to generate with, under the names that users of llama-cpp-python know."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

from pyllama_spec.engine import Adapter
from pyllama_spec.engine.checks import shown
from pyllama_spec.engine.log import thread_log_level
from pyllama_spec.errors import ArgumentError, ClosedError, UnsupportedError
from pyllama_spec.llama import pretrained
from pyllama_spec.llama.chat_completion import Chats
from pyllama_spec.llama.embedding import Embedder, response, texts_of
from pyllama_spec.llama.llama_cpp_drafts import drafter_of
from pyllama_spec.llama.loading import (
    check_parallel,
    open_drafter,
    open_model,
    open_runtime,
    why_not_generating,
)
from pyllama_spec.llama.open_model import LlamaState
from pyllama_spec.llama.open_options import (
    OpenOptions,
    for_model,
    init_of_options,
    warn_of_length,
    warn_of_unknown,
    with_arguments,
)
from pyllama_spec.llama.responses import Response, Stream
from pyllama_spec.llama.settings import Settings
from pyllama_spec.speculative import make_controller

__all__ = ["Llama", "LlamaState"]


class Llama(Chats, Settings):
    """A model with a context and a drafter.

    With n_parallel=1 one request at a time: other threads wait for their turn, and a stream that is
    not read to its end has to be closed before the same thread makes the next request. With more,
    that many requests and open streams are computed side by side, by a thread of their own; each
    gets the text that it would get alone.

    Numbers of llama-cpp-python's constants are taken where names are. What changes nothing here
    (logits_all without eval(), numa, no_perf, lora_base ...) passes; a keyword that there is not
    warns.

    Defaults are those of llama-cpp-python, so that programs keep theirs: n_ctx=512, max_tokens=16
    and temperature=0.8 for a text, no bound and 0.2 for a chat. The command line has others: 4096,
    128, 0.

    Raises:
        ModelLoadError: a file is missing, unreadable, or not a model.
        ArgumentError: a value is out of range.
        UnsupportedError: the model cannot generate, or the draft cannot be used with it.
        OutOfMemoryError: there is not enough memory.
        RemoteError: a server cannot be reached.

    """

    @init_of_options
    def __init__(self, model_path: str | os.PathLike[str], **keywords: Any) -> None:
        start = perf_counter()
        options, unknown = OpenOptions.from_keywords(model_path, keywords)
        self._opened_with = options
        warn_of_unknown(unknown)
        options.check()
        draft, draft_model = options.draft, options.draft_model
        draft = draft if draft_model is None else drafter_of(draft_model, draft)
        params = options.context_params()
        check_parallel(options.n_parallel, params)
        attributes = options.attributes()
        last_n, adapters = options.penalty_window(), options.adapters()
        with thread_log_level("info") if options.verbose else contextlib.nullcontext():
            controller = make_controller(options.controller, options.p_min)
            drafter = open_drafter(draft, options, controller)
            model = open_model(options)
            params = for_model(params, model)
            why_not = why_not_generating(model, options.vocab_only, options.embedding)
            runtime = None if why_not else open_runtime(
                model, params, drafter, options.n_draft, options.n_parallel, controller,
                wants_rows=options.logits_all,
            )  # fmt: skip
        own = None if drafter is draft and draft_model is None else drafter  # closed with this
        super().__init__(model, runtime, why_not, own, options.seed)
        self.model_path, self.verbose = os.fspath(model_path), options.verbose
        self.spm_infill, self.last_n_tokens_size = options.spm_infill, last_n
        self._logits_all, self._embeds = options.logits_all, options.embedding
        self.chat_handler = options.chat_handler
        self._note_settings(params, attributes)
        self._choose_template(options.chat_format, options.chat_template)
        if adapters:
            self.set_adapters(adapters)
        if runtime is not None:
            warn_of_length(params, model)
            runtime.runner.load_s = perf_counter() - start

    _embedder: Embedder | None = None

    def __reduce__(self) -> Any:
        """A pickle holds what it was opened with, and opens it again; it has no memory of texts."""
        return _opened_again, (type(self), self._opened_with.keywords())

    def set_adapters(
        self, adapters: Sequence[tuple[str | os.PathLike[str] | Adapter, float]]
    ) -> None:
        """Lets these LoRA adapters count from here on, each with its scale; () for none.

        What the memory holds was computed without them, and is forgotten.

        Raises:
            ArgumentError: these are no pairs of a file or an Adapter and a scale.
            ModelLoadError: a file is missing, or made for another model.
            BusyError: a request is running.

        """
        try:
            pairs = [(one, scale) for one, scale in adapters]
        except (TypeError, ValueError):
            raise ArgumentError(
                f"adapters={shown(adapters)} are no pairs of a file or an Adapter and its scale"
            ) from None
        loaded = [
            (one if isinstance(one, Adapter) else Adapter(self._open, one), scale)
            for one, scale in pairs
        ]
        with self._runtime.runner.exclusive():
            self._runtime.context.set_adapters(loaded)
        self.reset()

    def embed(
        self,
        input: str | Sequence[str],
        normalize: bool = False,
        truncate: bool = True,
        return_count: bool = False,
    ) -> Any:
        """Texts as vectors.

        Args:
            input: a text, or several.
            normalize: to a length of 1.
            truncate: cut texts longer than n_batch tokens; else refuse them.
            return_count: give the number of tokens too.

        Returns:
            For each text a list of n_embd floats; where the model does not pool, such a list for
            each of its tokens. Of a single text its own, and with return_count a pair.

        Raises:
            UnsupportedError: the model was opened without embedding=True.
            ClosedError: it is closed.
            ContextFullError: a text is too long, and truncate is False.
            CancelledError: cancel() was called meanwhile.

        """
        if self._open.is_closed:
            raise ClosedError(f"the model {self.model_path} is closed; load it again")
        if not self._embeds:
            raise UnsupportedError(
                "embeddings are for a Llama that was opened with embedding=True; open it so"
            )
        texts, embedder = texts_of(input), self._embedder
        if embedder is None:
            mine = Embedder(self._open, self._params)
            # Two threads may come here at once: one context serves both.
            embedder = self.__dict__.setdefault("_embedder", mine)
            if embedder is not mine:
                mine.close()
        found, n_tokens = embedder.embed(texts, normalize=normalize, truncate=truncate)
        out = found[0] if isinstance(input, str) else found
        return (out, n_tokens) if return_count else out

    def create_embedding(
        self, input: str | Sequence[str], model: str | None = None
    ) -> dict[str, Any]:
        """The same in the form of OpenAI's API; see embed()."""
        found, n_tokens = self.embed(texts_of(input), return_count=True)
        return response(found, n_tokens, self.model_path if model is None else model)

    def create_chat_completion_openai_v1(self, *args: Any, **keywords: Any) -> Any:
        """create_chat_completion() as objects of the package openai.

        Returns:
            A ChatCompletion, or with stream=True an iterator of ChatCompletionChunk.

        Raises:
            ImportError: the package openai is not installed.

        """
        from openai.types.chat import ChatCompletion, ChatCompletionChunk

        found: Response | Stream = self.create_chat_completion(*args, **keywords)
        if isinstance(found, Mapping):
            return ChatCompletion(**found)
        return (ChatCompletionChunk(**chunk) for chunk in found)

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        filename: str | None,
        additional_files: Sequence[str] | None = None,
        local_dir: str | os.PathLike[str] | None = None,
        local_dir_use_symlinks: bool | str = "auto",
        cache_dir: str | os.PathLike[str] | None = None,
        **keywords: Any,
    ) -> Llama:
        """A Llama of a file on the Hugging Face hub, by the package huggingface_hub.

        Args:
            repo_id: "owner/name".
            filename: the file, or a pattern such as "*Q4_0.gguf" that one file has.
            additional_files: further ones to fetch, such as the parts of a split model.
            local_dir: where to put them; None for the hub's cache.
            local_dir_use_symlinks: nothing: huggingface_hub has given it up.
            cache_dir: the hub's cache.
            keywords: of Llama().

        Raises:
            UnsupportedError: huggingface_hub is not installed.
            ArgumentError: no file has that name, or several.

        """
        del local_dir_use_symlinks
        path = pretrained.fetch(repo_id, filename, additional_files or (), local_dir, cache_dir)
        return cls(path, **keywords)

    def cancel(self) -> None:
        """Ends what runs, embed() too, from any thread: it raises CancelledError within one decode.

        Requests that wait for a place are not touched; with none running nothing happens.
        """
        super().cancel()
        if self._embedder is not None:
            self._embedder.cancel()

    def close(self) -> None:
        """Frees the model. Requests in other threads are cancelled first. May be called twice.

        Raises:
            BusyError: called by a callback of a running generation.

        """
        super().close()
        if self._embedder is not None:
            self._embedder.close()
        if self._tools is not None:
            self._tools.close()


def _opened_again(kind: type[Llama], keywords: dict[str, Any]) -> Llama:
    return kind(**keywords)


Llama.__doc__ = with_arguments(Llama.__doc__)
