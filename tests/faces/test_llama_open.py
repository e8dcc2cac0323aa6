"""Opening a model: refused arguments, and their messages."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import pyllama_spec
from pyllama_spec import (
    ArgumentError,
    CancelledError,
    Llama,
    ModelLoadError,
    NoDrafter,
    OutOfMemoryError,
    PromptLookup,
    UnsupportedError,
)
from pyllama_spec.cli.generate import figure_lines
from pyllama_spec.llama.loading import WATCH
from tests.faces.tools import PROMPT, open_tiny
from tests.models import model_path
from tests.models.sketch import Sketch
from tests.robust.tools import edited


def name_of(value: object) -> str:
    """The value as text, the same in each process: without addresses."""
    return re.sub(r" at 0x\w+", "", str(value))


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"draft_model": "x"}, "draft="), ({"logits_all": 1}, "logits_all"),
        ({"n_ctx": -1}, "n_ctx"),
        ({"n_ctx": "many"}, "n_ctx"), ({"n_draft": -1}, "n_draft"), ({"seed": -2}, "seed"),
        ({"type_k": "f17"}, "f17"), ({"n_threads": -1}, "n_threads"),
        ({"last_n_tokens_size": "x"}, "last_n_tokens_size"), ({"split_mode": "x"}, "split_mode"),
        ({"draft": PromptLookup}, r"PromptLookup\(\)"), ({"draft": 3}, "path or a Drafter"),
        ({"p_min": 0.4}, "p_min=0.4 applies to"), ({"draft": "x.gguf", "p_min": 1.5}, "p_min=1.5"),
        ({"draft": "prompt-lookup", "p_min": 0.4}, "not to 'prompt-lookup'"),
        ({"draft": PromptLookup(), "p_min": 0.4}, "not to <PromptLookup"),
        ({"draft": "x.gguf", "p_min": "much"}, "p_min='much'"),
        ({"draft": "promt-lookup"}, "prompt-lookup"), ({"draft": object()}, "Drafter"),
    ],
    ids=name_of,
)  # fmt: skip
def test_bad_keywords(keywords: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        open_tiny(**keywords)


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"type_v": "q8_0", "flash_attn": False}, "type_v='q8_0' needs flash attention"),
        ({"split_mode": "tensor", "flash_attn": False}, "split_mode='tensor' needs flash"),
        ({"n_gpu_layers": "x"}, "n_gpu_layers"), ({"rpc_servers": ["x"]}, "rpc_servers"),
        ({"kv_overrides": {"a": 1}}, "kv_overrides"), ({"tensor_split": "x"}, "tensor_split"),
        ({"chat_format": "chatml", "chat_template": "x"}, "not both"),
        ({"draft": "suffix", "lookup": 3}, "lookup=3 applies to"),
    ],
    ids=name_of,
)  # fmt: skip
def test_bad_keywords_are_refused_before_a_file_is_opened(
    keywords: dict[str, Any], words: str
) -> None:
    with pytest.raises(ArgumentError, match=words):
        Llama("/no/such/model.gguf", **keywords)


def test_an_open_model_is_no_draft() -> None:
    with open_tiny() as llm, pytest.raises(ArgumentError, match="no open model"):
        open_tiny(draft=llm)  # type: ignore[arg-type]


def test_draft_files(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="does not exist"):
        open_tiny(draft=str(tmp_path / "draft.gguf"))
    with pytest.raises(ArgumentError, match=r"\(bert\) is not a model that generates text"):
        open_tiny(draft=str(model_path("bert")))
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"no model")
    with pytest.raises(ModelLoadError, match="not a GGUF"):
        open_tiny(draft=broken)  # type: ignore[arg-type]


def test_targets_that_cannot_generate() -> None:
    with pytest.raises(UnsupportedError, match="encoder"):
        open_tiny(kind="bert")


@pytest.mark.parametrize("kind", ["mamba2", "rwkv7"])
def test_a_target_with_a_recurrent_state(kind: str) -> None:
    with open_tiny(kind=kind) as llm:
        plain = llm([97] * 40, max_tokens=9, temperature=0.0)
        assert plain["speculation"]["reason_off"] is None
    with open_tiny(PromptLookup(max_ngram=2, min_ngram=1), kind=kind) as llm:
        found = llm([97] * 40, max_tokens=9, temperature=0.0)
        assert found["speculation"]["drafter"] == "prompt-lookup"
        assert found["speculation"]["reason_off"] is None
        assert found["choices"][0]["text"] == plain["choices"][0]["text"]


def test_bad_paths(tmp_path: Path) -> None:
    for path, words in (
        (tmp_path, "folder"), (tmp_path / "no.gguf", "does not exist"), (3, "path"),
    ):  # fmt: skip
        with pytest.raises((ModelLoadError, ArgumentError), match=words):
            Llama(path)  # type: ignore[arg-type]


def test_sizes() -> None:
    with open_tiny(n_ctx=None) as llm:
        assert llm.n_ctx() == 65536
    with Llama(model_path("llama")) as llm:
        assert llm.n_ctx() == 512
    with pytest.raises(OutOfMemoryError):
        open_tiny(n_ctx=10**9)


def test_drafters_by_name() -> None:
    for draft, name in ((None, "none"), ("none", "none"), ("prompt-lookup", "prompt-lookup")):
        with open_tiny(draft) as llm:
            assert llm.drafter_name == name
            assert llm(PROMPT, max_tokens=2)["speculation"]["drafter"] == name
    with open_tiny("prompt-lookup", n_draft=3) as llm:
        assert max(llm([97] * 40, max_tokens=30)["speculation"]["accepted_histogram"]) >= 0
        assert len(llm([97] * 40, max_tokens=30)["speculation"]["accepted_histogram"]) <= 4
    with open_tiny("prompt-lookup", n_draft=0) as llm:
        assert llm([97] * 40, max_tokens=30)["speculation"]["drafted"] == 0


def test_a_drafter_of_the_callers_is_not_closed() -> None:
    class Watched(PromptLookup):
        n_closed = 0

        def close(self) -> None:
            self.n_closed += 1

    drafter = Watched()
    with open_tiny(drafter) as llm:
        llm(PROMPT, max_tokens=2)
    assert drafter.n_closed == 0
    with open_tiny(NoDrafter()):
        pass


def test_silence_and_progress(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_tiny() as llm:
        llm(PROMPT, max_tokens=2)
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")
    try:
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
        with open_tiny(verbose=True):
            pass
        assert "loading" in capfd.readouterr().err
    finally:
        with open_tiny():
            pass  # the log is the process's: silent again


@pytest.mark.parametrize(("n_draft", "n_batch"), [(1000, 512), (31, 512), (8, 4), (8, 2), (8, 1)])
def test_drafts_on_a_recurrent_target_are_as_long_as_its_batches_allow(
    n_draft: int, n_batch: int
) -> None:
    path, prompt = str(model_path("qwen35", output_scale=3.0)), [5, 6, 7] * 8
    texts = []
    for draft in (None, "prompt-lookup"):
        with Llama(
            path, draft=draft, n_draft=n_draft if draft else None, n_batch=n_batch, n_ctx=128
        ) as llm:
            texts.append(llm(prompt, max_tokens=20, temperature=0.0)["choices"][0]["text"])
    assert texts[0] == texts[1]


def test_keys_that_a_model_does_not_use_may_be_0(tmp_path: Path) -> None:
    """Every file from the engine's own saver has such keys."""

    def edit(sketch: Sketch) -> None:
        for name in ("interleave_moe_layer_step", "wkv.head_size", "attention.output_group_count"):
            sketch.key(name, 0)

    with Llama(str(edited(tmp_path, edit)), n_ctx=64) as llm:
        assert llm(PROMPT, max_tokens=2)["usage"]["completion_tokens"] > 0


def test_closing_twice_and_metadata() -> None:
    llm = open_tiny()
    assert llm.metadata["general.architecture"] == "llama"
    assert llm(PROMPT, max_tokens=1)["timing"]["load_s"] > 0
    llm.close()
    llm.close()


@pytest.mark.parametrize("draft", [None, "prompt-lookup", "eagle3", "llama"])
def test_the_time_to_load_says_the_drafts_part(draft: str | None) -> None:
    """For a file opened before the target, one opened after it, and no file."""
    is_file = draft in ("eagle3", "llama")
    file = os.fspath(model_path(draft)) if draft is not None and is_file else draft
    with open_tiny(file) as llm:
        first, later = (llm.generate_steps(PROMPT, max_tokens=2).read_all() for _ in range(2))
    timing = first.timing
    assert (timing.draft_load_s > 0) == (draft is not None)
    assert timing.draft_load_s < timing.load_s
    assert (later.timing.load_s, later.timing.draft_load_s) == (timing.load_s, timing.draft_load_s)
    added = timing.plus(later.timing)
    assert (added.load_s, added.draft_load_s) == (timing.load_s, timing.draft_load_s)
    (line, *_) = figure_lines(first.stats, timing)
    part = f"load {timing.load_s:.2f} s ({timing.draft_load_s:.2f} s of it the draft), prompt "
    assert (part in line) == (draft is not None)
    assert "load" not in figure_lines(first.stats, timing, has_load=False)[0]


def test_the_package_names_what_it_offers() -> None:
    for name in pyllama_spec.__all__:
        assert getattr(pyllama_spec, name) is not None
    assert pyllama_spec.__version__


@pytest.mark.parametrize("draft", [None, "eagle3"])
def test_a_load_can_be_ended_wherever_it_is(draft: str | None) -> None:
    """Cancelling the load of a target or draft leaves later loads complete."""

    def open_it(n: int) -> int:
        """Loads, and ends it at the n-th call, if it comes so far; gives how many came."""
        calls: list[float] = []

        def watch(fraction: float) -> None:
            calls.append(fraction)
            if len(calls) == n:
                raise CancelledError("enough")

        before = WATCH.set(watch)
        try:
            with open_tiny(None if draft is None else str(model_path(draft))) as llm:
                assert llm(PROMPT, max_tokens=1)["choices"]
        finally:
            WATCH.reset(before)
        return len(calls)

    n_calls = open_it(0)
    assert n_calls >= (2 if draft is None else 4)
    for n in {1, 2, n_calls // 2, n_calls // 2 + 1, n_calls - 1, n_calls}:
        with pytest.raises(CancelledError, match="enough"):
            open_it(n)
    assert open_it(n_calls + 1) == n_calls


@pytest.mark.parametrize(
    ("n_bytes", "why"),
    [
        (100_000, "it is cut off, its tensors go beyond its end; download it again"),
        (100, "more than its 100 bytes can hold: it is cut off or damaged; download it again"),
    ],
)
def test_a_file_that_is_cut_off_is_downloaded_again(n_bytes: int, why: str, tmp_path: Path) -> None:
    path = tmp_path / "half.gguf"
    path.write_bytes(model_path("llama").read_bytes()[:n_bytes])
    with pytest.raises(ModelLoadError, match=re.escape(why)):
        Llama(path)


def test_a_path_that_names_no_file(tmp_path: Path) -> None:
    text = tmp_path / "text.gguf"
    text.write_text("a text")
    for path, why in (
        (text, "give the path of a .gguf file, or download it again"),
        ("", 'model_path="" is no file name'),
        ("~/gone.gguf", "~ is no folder here: write it out"),
    ):
        with pytest.raises(ModelLoadError, match=re.escape(why)):
            Llama(path)
