"""Options that would do nothing though their writer relies on them: they are refused."""

from __future__ import annotations

import argparse
from pathlib import Path

from pyllama_spec.drafters.registry import AUTO, MTP, NONE, needs_file
from pyllama_spec.errors import ArgumentError

_OF_DRAFT = (
    "n_draft", "p_min", "lookup", "controller", "acceptance", "draft_gpu_layers", "draft_memory",
    "draft_n_ctx",
)  # fmt: skip


def check_pairs(args: argparse.Namespace) -> None:
    """Refuses an option that has no effect beside the others."""
    is_off = getattr(args, "controller", None) == "off"
    is_plain = getattr(args, "draft", None) == NONE and not getattr(args, "config", None)
    pairs = (
        # With serve --config, the file says it of each model.
        (("pooling",), _lacks(args, "embeddings"), "is for --embeddings: give it too"),
        (("cache_size",), _lacks(args, "cache_dir"), "is for --cache-dir: give it too"),
        (("rpc_timeout",), _lacks(args, "rpc_servers"), "is for --rpc-servers: give them too"),
        (("draft_gpu_layers", "draft_n_ctx"), _drafts_without_model(args),
         "is for a draft with a model: leave it out"),
        (("n_draft", "p_min", "lookup"), is_off,
         "does nothing beside --controller off, which drafts nothing: leave out one"),
        (_OF_DRAFT, is_plain, "is for a draft: add -d"),
    )  # fmt: skip
    for names, is_idle, why in pairs:
        for name in names if is_idle else ():
            value = getattr(args, name, None)
            # By shared noise a seed has another text, without a draft too.
            if value is not None and (name, value) != ("acceptance", "noise"):
                raise ArgumentError(f"--{name.replace('_', '-')} {why}")


def _lacks(args: argparse.Namespace, name: str) -> bool:
    return hasattr(args, name) and not (getattr(args, name) or getattr(args, "config", None))


def _drafts_without_model(args: argparse.Namespace) -> bool:
    """Whether all drafts are of drafters that have no model, such as suffix."""
    drafts = getattr(args, "draft", None) or ()
    if isinstance(drafts, Path):  # convert's folder
        return False
    drafts = [drafts] if isinstance(drafts, str) else drafts
    return not {*drafts} <= {NONE} and not any(
        one in (AUTO, MTP) or needs_file(one) for one in drafts
    )
