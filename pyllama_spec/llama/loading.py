"""Opens a target and its drafter: the checks and choices behind Llama()."""

from __future__ import annotations

import contextlib
import json
import os
import platform
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

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
    build_stamp,
    devices,
    engine_version,
    row_kernels,
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
from pyllama_spec.files import whole_file
from pyllama_spec.llama.open_options import OpenOptions
from pyllama_spec.requests.options import check_seed
from pyllama_spec.requests.runner import Runner, Runtime
from pyllama_spec.speculative import Controller, Round, make_controller
from pyllama_spec.speculative.controller import KnownCosts
from pyllama_spec.speculative.row_timing import measure_rows
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
    max_draft = min(drafter.max_draft, params.n_batch - 1)
    max_draft = max_draft if n_draft is None else min(max_draft, n_draft)
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
    smaller = _sizes_to_reduce(params)
    context = _open_context(model, params, smaller)
    with closed_on_failure(context):
        begin = perf_counter()
        round_ = Round(context, drafter, n_draft, controller, store_bytes=store_bytes)
        try:
            on_close = _learn_costs(round_, controller, drafter)
        except OutOfMemoryError as error:  # the first decodes
            sizes = [*smaller, "n_batch", "n_ubatch"]
            raise error.of(model.path.name, sizes) from None
        runner = Runner(model, round_, max_waiting, attach_s=perf_counter() - begin)
        return Runtime(model, context, round_, runner, on_close, acceptance)


def _check_is_free(drafter: Drafter) -> None:
    """Raises unless the drafter may be attached to another target."""
    attached = drafter.attached_to
    if attached is not None and not attached.is_closed:
        raise ArgumentError(
            "draft", problem=f"drafts for another open model ({drafter.name!r})",
            remedy="close that one, or make a drafter for each",
        )  # fmt: skip


def _sizes_to_reduce(params: ContextParams) -> list[str]:
    """The keywords of Llama() that make a context smaller."""
    return ["n_ctx"] + ["n_parallel"] * (params.n_seq_max > 1) + ["n_draft"] * (params.n_rs_seq > 0)


def _open_context(model: Model, params: ContextParams, smaller: Sequence[str]) -> Context:
    """Opens the target's context; an error names the keywords of Llama()."""
    try:
        return Context(model, params)
    except OutOfMemoryError as error:
        n, info = params.n_seq_max, model.info
        n_ctx = (params.n_ctx or 0) // n
        requests = f"{n_ctx} tokens" if n == 1 else f"{n} requests with {n_ctx} tokens each"
        has_state = info.has_recurrent_state
        memory = "the memory of past tokens for" if has_state else "the KV cache for"
        types = "" if info.is_recurrent else ", or `type_k` and `type_v` of fewer bits"
        what = f"{model.path.name}: {memory} {requests}"
        raise error.of(what, smaller, types) from None


def _learn_costs(
    round_: Round, controller: Controller | None, drafter: Drafter
) -> Callable[[], None] | None:
    """Loads stored costs into a controller; returns the function that stores them at the end."""
    if controller is None or not controller.wants_costs or not round_.max_draft:
        return None
    cache = CostCache(round_.target, drafter)
    known = cache.read()
    if known is not None:
        controller.begin_with(known)
    controller.learn_costs(measure_rows(round_.target, 1 + round_.max_draft))
    return partial(cache.write, controller)


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


_FORMAT = 1
# A file has some hundred bytes.
_MAX_BYTES = 1 << 14
_MAX_SIZES = 64
# Seconds of a part of a round: beyond these something else was measured.
_LEAST_S, _MOST_S = 1e-8, 60.0


def cache_folder() -> Path:
    """The folder of downloads and costs."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("PYLLAMA_SPEC_CACHE") or f"{base}/pyllama_spec").expanduser()


class CostCache:
    """The costs of rounds on this machine, kept for later programs as initial estimates.

    One small file for each target, drafter, machine and build, in the folder of the downloads. A
    file that is damaged, hostile or of another version is ignored, and no fault here reaches the
    caller. PYLLAMA_SPEC_COSTS=off disables it.
    """

    def __init__(self, context: Context, drafter: Drafter) -> None:
        self._path: Path | None = None
        if os.environ.get("PYLLAMA_SPEC_COSTS", "").lower() not in ("off", "0", "no"):
            # A folder that cannot be named, a drafter whose description fails.
            with contextlib.suppress(Exception):
                self._path = cache_folder() / "costs" / f"{_key(context, drafter)}.json"

    @property
    def path(self) -> Path | None:
        """The path of the file; None if costs are not stored."""
        return self._path

    def read(self) -> KnownCosts | None:
        """Reads the stored costs; None if they are missing or implausible."""
        # Opening a pipe, which is not a regular file, may block without end.
        if self._path is None or not self._path.is_file():
            return None
        try:
            with self._path.open("rb") as file:
                data = file.read(_MAX_BYTES + 1)
            content = json.loads(data) if len(data) <= _MAX_BYTES else {}
            if content["format"] != _FORMAT:
                return None
            known = KnownCosts(*(_curve(content[name]) for name in ("verify", "draft", "rest")))
        except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
            return None
        return known if known.verify else None

    def write(self, controller: Controller) -> None:
        """Stores a controller's costs, if it measured enough."""
        if self._path is None:
            return
        known = controller.known_costs()
        if known is None:
            return
        content = {
            "format": _FORMAT,
            "verify": known.verify,
            "draft": known.draft,
            "rest": known.rest,
        }
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # A file of this process alone: others may write theirs, and the last one counts.
            own = self._path.with_name(f"{self._path.name}.{os.getpid()}")
            with whole_file(own) as part:
                part.write_text(json.dumps(content), encoding="ascii")
            own.replace(self._path)


def _key(context: Context, drafter: Drafter) -> str:
    """A digest of everything that the costs depend on."""
    info, params = context.model.info, context.params
    about = drafter.describe()
    facts = [
        build_stamp(), engine_version(), row_kernels(), platform.machine(), platform.node(),
        os.cpu_count(), [device.name for device in devices()], _cpu_name(),
        info.arch, info.n_params, info.size_bytes, info.n_layer, info.n_embd, info.n_vocab,
        context.model.description, sorted(context.model.placement.items()),
        context.n_threads, params.n_seq_max, params.kv_unified, params.flash_attn,
        params.type_k, params.type_v, params.n_rs_seq, context.target_layers,
        drafter.name, drafter.max_draft, about.get("size_bytes"), about.get("n_params"),
        about.get("lookup"),
    ]  # fmt: skip
    import hashlib  # loads a library of its own

    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def _cpu_name() -> str:
    """The processor's name, if the system reports it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n"):
            if line.startswith("model name"):
                return line
    return platform.processor()


def _curve(seconds: Any) -> dict[int, float]:
    """Reads seconds by size; ValueError, or another one, if a value is implausible."""
    if len(seconds) > _MAX_SIZES:
        raise ValueError
    curve: dict[int, float] = {}
    for key, value in seconds.items():
        size = int(key[:4]) if key.isascii() else 0
        # Not converted before: JSON has whole numbers that no float holds. NaN is outside too.
        if not 1 <= size < 1000 or value is True or not _LEAST_S <= value <= _MOST_S:
            raise ValueError
        curve[size] = float(value)
    return curve
