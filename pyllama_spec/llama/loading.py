"""Opens a target and its drafter: the checks and choices behind Llama()."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from pyllama_spec.chat.template import check_form
from pyllama_spec.drafters import Drafter
from pyllama_spec.drafters.registry import (
    check_draft,
    is_draft,
    make_drafter_for,
    open_before,
    wants_head,
)
from pyllama_spec.engine import (
    Context,
    ContextParams,
    Model,
)
from pyllama_spec.engine.checks import count
from pyllama_spec.engine.closeable import closed_on_failure
from pyllama_spec.engine.context import FEW_ROWS
from pyllama_spec.engine.model import Progress, check_arguments
from pyllama_spec.engine.rpc import set_rpc_timeout
from pyllama_spec.errors import (
    ArgumentError,
    OutOfMemoryError,
    UnsupportedError,
)
from pyllama_spec.llama.open_options import OpenOptions
from pyllama_spec.requests.options import check_seed
from pyllama_spec.requests.runner import Runner, Runtime
from pyllama_spec.speculative import Controller, Round, make_controller
from pyllama_spec.speculative.row_timing import measure_rows
from pyllama_spec.speculative.scheduler import draft_bound, drafter_bound
from pyllama_spec.terminal import ProgressBar

# The engine's LLAMA_MAX_SEQ.
_MAX_PARALLEL = 256
# Told how far it is, 0.0 to 1.0, while a file is loaded in this context; what it raises ends that.
WATCH: ContextVar[Progress | None] = ContextVar("WATCH", default=None)


def progress_for(path: str | os.PathLike[str], verbose: bool) -> Progress | None:
    """A progress bar for a load, on a terminal or as WATCH; None for no one."""
    watch, bar = WATCH.get(), ProgressBar(f"loading {Path(path).name}") if verbose else None
    if watch is None or bar is None:
        return watch or bar

    def both(fraction: float) -> None:
        bar(fraction)
        watch(fraction)

    return both


_WITH_TARGET = "open the target as `model_path`, and give this file as `draft`"


def check_target(model: Model) -> None:
    """Refuses models that cannot generate text alone."""
    info, name = model.info, model.path.name
    if info.is_head_alone:
        raise UnsupportedError(
            f"{name} holds an MTP head of kind {info.arch!r} alone: it needs its target",
            remedy=_WITH_TARGET,
        )
    if info.n_target_layers or is_draft(info.arch):
        raise UnsupportedError(
            f"{name} is a draft of kind {info.arch!r}: it needs its target", remedy=_WITH_TARGET
        )
    if model.is_encoder:
        raise UnsupportedError(
            f"{name} ({info.arch}) is an encoder: it does not generate text",
            setup="`embedding=True` gives its embeddings",
        )
    if info.has_encoder:
        raise UnsupportedError(
            f"{name} ({info.arch}) has an encoder; only decoders are supported by this version"
        )
    if info.is_diffusion:
        raise UnsupportedError(
            f"{name} ({info.arch}) is a diffusion model; those are not supported by this version"
        )


def why_not_generating(model: Model, vocab_only: bool, embedding: bool) -> str:
    """The reason why a model is opened without generation; "" if it can generate."""
    if vocab_only:
        return "the model was opened with vocab_only=True, without its weights; open it without"
    if embedding and model.is_encoder:
        return (
            f"{model.path.name} ({model.info.arch}) is an encoder: it does not generate text; "
            "embed() gives its embeddings"
        )
    return ""


def open_model(options: OpenOptions, *, load_mtp: bool = False) -> Model:
    """Opens the model of Llama's keywords, with its file's MTP head if wanted."""
    if options.rpc_timeout is not None:
        set_rpc_timeout(options.rpc_timeout)
    path = options.model_path
    return Model(
        path, **options.model_arguments(), load_mtp=load_mtp,
        progress=progress_for(path, options.verbose),
    )  # fmt: skip


def check_parallel(n_parallel: object, params: ContextParams) -> None:
    """Refuses more parallel requests than the engine allows."""
    n = count(n_parallel, "n_parallel", 1, _MAX_PARALLEL)
    if n > params.n_batch:
        raise ArgumentError(
            "n_parallel",
            n,
            f"at most `n_batch={params.n_batch}`: a round takes a token of each request",
        )


def check_options(options: OpenOptions) -> None:
    """Checks all options that need no file, before a file is opened."""
    options.check()
    controller = make_controller(options.controller, options.p_min)
    check_parallel(options.n_parallel, options.context_params())
    check_seed(options.seed)
    check_arguments(**options.model_arguments())
    check_form(options.chat_format, options.chat_template)
    drafts = options.draft_options(progress=None, is_adaptive=controller.wants_costs)
    if options.draft_model is None:
        check_draft(options.draft, drafts)


def open_pair(
    draft: object, options: OpenOptions, controller: Controller
) -> tuple[Model, Drafter, float]:
    """Opens the target and the drafter of Llama's `draft=`."""
    file = draft if isinstance(draft, (str, os.PathLike)) else ""
    draft_options = options.draft_options(
        progress=progress_for(file, options.verbose), is_adaptive=controller.wants_costs
    )
    # Faults of a draft are reported before the target is loaded.
    begin = perf_counter()
    drafter = open_before(draft, options.model_path, draft_options)
    draft_s = perf_counter() - begin
    with closed_on_failure(None if drafter is draft else drafter):
        is_head = wants_head(draft if drafter is None else drafter, options.model_path)
        model = open_model(options, load_mtp=is_head)
    if drafter is None:
        begin = perf_counter()
        with closed_on_failure(model):
            drafter = make_drafter_for(model, draft, draft_options)
        draft_s = perf_counter() - begin
    return model, drafter, draft_s


def open_runtime(
    model: Model,
    params: ContextParams,
    drafter: Drafter,
    n_draft: int | None,
    n_parallel: int = 1,
    controller: Controller | None = None,
    *,
    wants_rows: bool = False,
    max_waiting: int | None = None,
    store_bytes: int | None = None,
    acceptance: str = "exact",
) -> Runtime:
    """Opens a target's context, drafter and runner."""
    check_target(model)
    drafter.check(model)
    _check_is_free(drafter)
    max_draft, _ = draft_bound(drafter_bound(drafter), n_draft=n_draft, n_rows=params.n_batch)
    n_ctx = (params.n_ctx or model.info.n_ctx_train) * n_parallel
    params = replace(
        params,
        n_ctx=n_ctx,
        n_seq_max=n_parallel,
        n_rs_seq=_n_snapshots(model, max_draft, min(params.n_batch, params.n_ubatch, n_ctx)),
        # Logits of the pending token and the draft, and of no prompt: a row is a vocabulary wide.
        n_outputs_max=0 if wants_rows else min(n_parallel * (max_draft + 1), params.n_batch),
        target_layers=drafter.target_layers,
    )
    with _named_sizes(model, params):
        context = Context(model, params)
    with closed_on_failure(context):
        begin = perf_counter()
        round_ = Round(context, drafter, n_draft, controller, store_bytes=store_bytes)
        if controller is not None and controller.wants_costs and round_.max_draft:
            with _named_sizes(model, params):
                controller.learn_costs(measure_rows(context, 1 + round_.max_draft))
        runner = Runner(model, round_, max_waiting, attach_s=perf_counter() - begin)
        return Runtime(model, context, round_, runner, acceptance)


def _check_is_free(drafter: Drafter) -> None:
    """Raises unless the drafter may be attached to another target."""
    attached = drafter.attached_to
    if attached is not None and not attached.is_closed:
        raise ArgumentError(
            "draft", problem=f"drafts for another open model ({drafter.name!r})",
            remedy="close that one, or make a drafter for each",
        )  # fmt: skip


@contextlib.contextmanager
def _named_sizes(model: Model, params: ContextParams) -> Iterator[None]:
    """Has an error for want of memory name the keywords of Llama() that need less."""
    try:
        yield
    except OutOfMemoryError as error:
        more = ["n_parallel"] * (params.n_seq_max > 1) + ["n_draft"] * (params.n_rs_seq > 0)
        raise error.of(f"the KV cache of {model.path.name}", ["n_ctx", *more, "n_batch"]) from None


def _n_snapshots(model: Model, max_draft: int, n_ubatch: int) -> int:
    """The number of snapshots of a recurrent state in the target's context.

    A verify batch has at most as many rows as are equal to single ones, and the engine requires a
    physical batch larger than that.
    """
    info = model.info
    # Without a rollback the round turns the drafter off, and the result says why.
    if max_draft == 0 or not info.has_recurrent_state or not info.can_roll_back:
        return 0
    return max(min(max_draft + 1, FEW_ROWS, n_ubatch - 2), 0)
