"""An unsuitable draft is refused in one line, before the target is loaded if possible.

Nothing stays open, even while the exception is kept, as in notebooks and pytest.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pyllama_spec import Llama
from pyllama_spec.errors import PyllamaSpecError
from tests.models import model_path
from tests.mtp_tools import without


class Refused(NamedTuple):
    """A target, a draft, and what the refusal names."""

    target: Path
    draft: str
    named: str
    n_ctx: int = 128


def _copy(source: Path, path: Path, *missing: str) -> Path:
    """A file under a name that no other test opens."""
    return without(source, path, *missing)


def no_head(folder: Path) -> Refused:
    target = _copy(model_path("llama"), folder / "bare.gguf")
    return Refused(target, "mtp", "bare.gguf")


def torn_head(folder: Path) -> Refused:
    source = model_path("qwen35", n_heads=1)
    target = _copy(source, folder / "torn.gguf", "blk.4.nextn.eh_proj.weight")
    return Refused(target, "mtp", "blk.4.nextn.eh_proj.weight")


def torn_draft(folder: Path) -> Refused:
    target = _copy(model_path("llama"), folder / "target.gguf")
    draft = _copy(model_path("eagle3"), folder / "torn-draft.gguf", "fc.weight")
    return Refused(target, str(draft), "fc.weight")


def torn_target(folder: Path) -> Refused:
    """The draft is open by then."""
    target = _copy(model_path("llama"), folder / "target.gguf", "blk.0.attn_q.weight")
    draft = _copy(model_path("eagle3"), folder / "draft.gguf")
    return Refused(target, str(draft), "blk.0.attn_q")


def no_memory(folder: Path) -> Refused:
    """The target's context has no memory: both files are open by then."""
    target = _copy(model_path("llama"), folder / "target.gguf")
    draft = _copy(model_path("eagle3"), folder / "draft.gguf")
    return Refused(target, str(draft), "n_ctx", 2**30)


CASES = (no_head, torn_head, torn_draft, torn_target, no_memory)


def still_open(folder: Path) -> set[str]:
    """The files of a folder that this process has open or mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = [Path(line.split(maxsplit=5)[-1]) for line in lines]
    # The listing's own is gone by now.
    paths += [one.readlink() for one in list(Path("/proc/self/fd").iterdir()) if one.is_symlink()]
    return {path.name for path in paths if path.is_relative_to(folder)}


@pytest.mark.parametrize("case", CASES)
def test_nothing_stays_open(case: Any, tmp_path: Path) -> None:
    refused = case(tmp_path)
    kept = []
    for n_parallel in (1, 2):
        with pytest.raises(PyllamaSpecError) as caught:
            Llama(
                refused.target, draft=refused.draft, n_ctx=refused.n_ctx, n_threads=1,
                n_parallel=n_parallel,
            )  # fmt: skip
        kept.append(caught)  # with its frames
        assert refused.named in str(caught.value)
        assert "\n" not in str(caught.value)
        assert still_open(tmp_path) == set()


@pytest.mark.parametrize("case", [torn_draft, no_head])
def test_the_draft_comes_before_the_target(case: Any, tmp_path: Path) -> None:
    """A target takes minutes to load; this one cannot be, and what is said is of the draft."""
    refused = case(tmp_path)
    broken = _copy(refused.target, tmp_path / f"b-{refused.target.name}", "token_embd.weight")
    with pytest.raises(PyllamaSpecError) as caught:
        Llama(broken, draft=refused.draft, n_ctx=128, n_threads=1)
    assert "token_embd.weight" not in str(caught.value)
