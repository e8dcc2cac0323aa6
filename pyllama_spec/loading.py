"""Opening a target and what drafts for it: the checks and choices behind Llama()."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pyllama_spec.completion import Runtime
from pyllama_spec.drafters import Drafter, Eagle3, NoDrafter, PromptLookup, WithLookup
from pyllama_spec.drafters.ngram_table import NgramTable
from pyllama_spec.engine import Context, ContextParams, Model
from pyllama_spec.engine.checks import count, real
from pyllama_spec.engine.errors import (
    ArgumentError,
    ModelLoadError,
    PyllamaSpecError,
    UnsupportedError,
)
from pyllama_spec.engine.gguf_header import check_header
from pyllama_spec.engine.model import Progress
from pyllama_spec.gate import Gate
from pyllama_spec.prompts import check_count
from pyllama_spec.speculative import SequenceState, SpeculativeLoop
from pyllama_spec.terminal import ProgressBar

PROMPT_LOOKUP, NONE = "prompt-lookup", "none"

# Keywords of llama-cpp-python's Llama that mean nothing here, and what to do instead.
KEYWORD_HINTS: Mapping[str, str] = {
    "draft_model": 'here it is draft=, and takes "prompt-lookup", a path or a Drafter object',
    "logits_all": "not needed: log-probabilities of generated tokens work without it",
    "embedding": "embeddings are not part of Llama; engine.Context(embeddings=True) has them",
    "n_threads_batch": "one number of threads serves both: n_threads",
    "lora_path": "adapters are not supported by this version; merge it into the model",
    "lora_base": "adapters are not supported by this version; merge it into the model",
    "lora_scale": "adapters are not supported by this version; merge it into the model",
    "chat_handler": "not supported; give a Jinja text as chat_template=",
    "tokenizer": "not supported; the vocabulary of the model's file is used",
    "vocab_only": "not supported by Llama; engine.Model(vocab_only=True) opens a vocabulary",
    "kv_overrides": "not supported by this version",
    "n_gqa": "not needed: the model's file says it",
    "rms_norm_eps": "not needed: the model's file says it",
}

# Tokens that a head drafts per round where nothing else is said: each costs a decode of its own.
_EAGLE3_MAX_DRAFT = 4
# So many tokens that stood before are copied from there: see docs/measurements.md.
_LOOKUP = 5
# Architectures of GGUF files that only draft for another model.
_DRAFT_ARCHS = ("eagle", "dflash", "dspark", "medusa")


def progress_for(path: str | os.PathLike[str], verbose: bool) -> Progress | None:
    """What shows the loading of a file on a terminal; None for nothing."""
    return ProgressBar(f"loading {Path(path).name}") if verbose else None


def check_target(model: Model) -> None:
    """Refuses models that cannot generate text by themselves.

    Raises:
        UnsupportedError: with the reason.

    """
    info, name = model.info, model.path.name
    if info.n_target_layers or info.arch.startswith(_DRAFT_ARCHS):
        raise UnsupportedError(
            f"{name} is a draft of kind {info.arch!r}: it needs its target. Open the target as "
            f"model_path= and give this file as draft="
        )
    is_causal = model.metadata.get(f"{info.arch}.attention.causal", "true") != "false"
    if not info.has_decoder or not is_causal:
        raise UnsupportedError(f"{name} ({info.arch}) is an encoder: it does not generate text")
    if info.has_encoder:
        raise UnsupportedError(
            f"{name} ({info.arch}) has an encoder; only decoders are supported by this version"
        )
    if info.is_diffusion:
        raise UnsupportedError(
            f"{name} ({info.arch}) is a diffusion model; those are not supported by this version"
        )


def make_drafter(
    draft: object,
    n_draft: int | None,
    p_min: float | None = None,
    *,
    lookup: int | None = None,
    n_gpu_layers: int = 0,
    verbose: bool = False,
) -> Drafter:
    """The drafter that `draft=` means.

    Args:
        draft: None, "none", "prompt-lookup", the path of a GGUF, or a Drafter.
        n_draft: the most tokens to draft per round; None for the drafter's own.
        p_min: end a draft before a token that the draft gives a lower probability; None for no
            such limit. It is for drafts that are read from a file.
        lookup: where the last so many tokens stood before, propose what followed there instead of
            asking the draft of a file; None for the default, 0 for the draft alone, without this
            and without n-grams that have a say beside it.
        n_gpu_layers: layers of the draft's file on the GPU.
        verbose: show the loading of a file.

    Raises:
        ArgumentError: it is none of these, with a hint at what was meant, or p_min or lookup are
            not for it.
        ModelLoadError: the path is no readable GGUF.
        UnsupportedError: this version has no drafter for the file.

    """
    if n_draft is not None:
        check_count(n_draft, "n_draft", 0)
    is_name = isinstance(draft, str) and draft in (NONE, PROMPT_LOOKUP)
    for name, value in (("p_min", p_min), ("lookup", lookup)):
        if value is not None and (is_name or not isinstance(draft, (str, os.PathLike))):
            raise ArgumentError(f"{name} is for a draft that is given as a file, not {draft!r:.60}")
    if p_min is not None and real(p_min, "p_min", 0.0) > 1.0:
        raise ArgumentError(f"p_min={p_min!r} is not a probability: 0 .. 1")
    n_same = _LOOKUP if lookup is None else count(lookup, "lookup", 0)
    if draft is None or (isinstance(draft, str) and draft == NONE):
        return NoDrafter()
    if isinstance(draft, str) and draft == PROMPT_LOOKUP:
        return PromptLookup() if n_draft is None else PromptLookup(max(n_draft, 1))
    if isinstance(draft, type):
        raise ArgumentError(
            f"draft={draft.__name__} is a class; give an object of it: draft={draft.__name__}()"
        )
    if isinstance(draft, (str, os.PathLike)):
        head = _drafter_of_file(Path(draft), n_draft, p_min or 0.0, n_gpu_layers, verbose)
        return WithLookup(head, n_same, _table_of(head)) if n_same else head
    if isinstance(draft, Drafter):
        return draft
    if hasattr(draft, "create_completion"):
        raise ArgumentError("draft= takes the path of the draft's GGUF file, not an open model")
    raise ArgumentError(
        f'draft={draft!r:.60} is not None, "{NONE}", "{PROMPT_LOOKUP}", a path or a Drafter'
    )


def _drafter_of_file(
    path: Path, n_draft: int | None, p_min: float, n_gpu_layers: int, verbose: bool
) -> Eagle3:
    if not path.exists() and path.suffix != ".gguf" and len(path.parts) == 1:
        raise ArgumentError(
            f'draft={str(path)!r} is neither "{NONE}" nor "{PROMPT_LOOKUP}", nor a file that exists'
        )
    check_header(path)
    with Model(path, vocab_only=True) as model:
        arch = model.info.arch
    if arch == "eagle3":
        return Eagle3(
            path,
            _EAGLE3_MAX_DRAFT if n_draft is None else max(n_draft, 1),
            p_min=p_min,
            n_gpu_layers=n_gpu_layers,
            progress=progress_for(path, verbose),
        )
    raise UnsupportedError(
        f"drafts of kind {arch!r} are not supported by this version ({path.name}); "
        f'draft="{PROMPT_LOOKUP}" needs no file'
    )


def _table_of(head: Eagle3) -> NgramTable | None:
    """The n-gram table of a head's file, if it has one."""
    try:
        arrays = head.model.ngram_arrays()
        return None if arrays is None else NgramTable(*arrays, head.model.info.n_vocab)
    except ArgumentError as error:
        head.close()
        raise ModelLoadError(f"{head.model.path}: {error}") from None
    except PyllamaSpecError:
        head.close()
        raise


def open_runtime(
    model: Model, params: ContextParams, drafter: Drafter, n_draft: int | None
) -> Runtime:
    """Opens what generations need of a target.

    Raises:
        UnsupportedError: the model cannot generate.
        ArgumentError: the parameters do not fit the model, or the draft was made for another one.
        OutOfMemoryError: there is not enough memory.

    """
    check_target(model)
    head = drafter.drafter if isinstance(drafter, WithLookup) else drafter
    if isinstance(head, Eagle3):
        head.model.check_draft_of(model)
    n = drafter.max_draft if n_draft is None else min(n_draft, drafter.max_draft)
    n = max(min(n, params.n_batch - 1), 0)
    params = replace(
        params,
        n_rs_seq=_n_snapshots(model, n),
        # Logits of the pending token and the draft, and of no prompt: a row is a vocabulary wide.
        n_outputs_max=n + 1,
        target_layers=tuple(drafter.target_layers),
    )
    context = Context(model, params)
    loop = SpeculativeLoop(context, drafter, n_draft)
    return Runtime(model, context, loop, SequenceState(), Gate(context.cancel))


def _n_snapshots(model: Model, n_draft: int) -> int:
    """How many snapshots of a recurrent state the target's context needs."""
    info = model.info
    # Without a rollback the loop turns the drafter off, and the result says why.
    if n_draft == 0 or not info.has_recurrent_state or not info.can_roll_back:
        return 0
    return n_draft + 1
