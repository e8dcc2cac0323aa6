"""Whole benchmarks on tiny models: both sides, kept files, refused options."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyllama_spec import Llama, bench
from pyllama_spec.bench.sides import Run, Side, open_sides
from pyllama_spec.drafters import Draft, DraftRequest, LookupFirst, PromptLookup, Suffix
from pyllama_spec.engine import Model
from pyllama_spec.errors import (
    ArgumentError,
    ContextFullError,
    EngineError,
    ModelLoadError,
    UnsupportedError,
)
from pyllama_spec.speculative import SequenceState, SpeculativeLoop
from tests.bench.tools import CHAT, LINES, tiny_config, write_prompts
from tests.models import model_path


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> bench.BenchResult:
    return bench.run(tiny_config(tmp_path_factory.mktemp("bench"), repeats=3))


def test_the_figures_belong_together(result: bench.BenchResult) -> None:
    report = bench.to_json(result)
    summary, time = report["summary"], report["time"]
    n = summary["n_tokens"]
    assert n == 2 * 3 * 39, "both prompts, three repeats, all tokens but the first"
    assert summary["plain_tps"] == pytest.approx(n / time["plain"]["decode_s"])
    assert summary["spec_tps"] == pytest.approx(n / time["spec"]["decode_s"])
    assert summary["accepted"] + summary["rounds"] == n
    assert sum(report["accepted_histogram"]) == summary["rounds"]
    assert sum(i * k for i, k in enumerate(report["accepted_histogram"])) == summary["accepted"]
    assert report["acceptance_by_depth"][0]["depth"] == 1
    assert sum(d["accepted"] for d in report["acceptance_by_depth"]) == summary["accepted"]
    assert sum(d["drafted"] for d in report["acceptance_by_depth"]) == summary["drafted"]
    for side in time.values():
        parts = side["draft_s"] + side["verify_s"] + side["rest_s"]
        assert parts == pytest.approx(side["decode_s"])
        assert side["cpu_s"] >= side["decode_cpu_s"] > 0
    assert summary["acceptance_rate"] > 0.5, "the text repeats itself"
    assert report["settings"]["drafter"] == "prompt-lookup"
    assert report["settings"]["n_threads"] == 1
    assert report["bandwidth"]["plain_bytes_per_s"] == pytest.approx(
        summary["plain_tps"] * report["bandwidth"]["weight_bytes_per_token"]
    )


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_both_sides_give_the_ids_of_llama(tmp_path: Path, temperature: float) -> None:
    target = model_path("llama")
    config = tiny_config(tmp_path, model_path=target, temperature=temperature, seed=11, repeats=1)
    result = bench.run(config)
    options: dict[str, Any] = {"temperature": temperature, "seed": 11}
    options["max_tokens"] = config.n_tokens
    with Llama(target, n_threads=1, n_ctx=result.setup.n_ctx) as llm:
        steps = [
            llm.generate_chat_steps(CHAT, **options),
            llm.generate_steps(LINES[1]["prompt"], **options),
        ]
        for generation, prompt in zip(steps, result.prompts, strict=True):
            assert list(generation)[-1].finish_reason == "length"
            assert prompt.n_prompt == len(generation.record.prompt_tokens)
            (pair,) = prompt.pairs
            assert list(pair.plain.tokens) == generation.record.tokens
            assert pair.plain.tokens == pair.spec.tokens


def test_the_sides_are_what_llama_opens(tmp_path: Path) -> None:
    target, draft = model_path("perm"), model_path("perm_eagle3")
    config = tiny_config(tmp_path, model_path=target, draft=draft, n_draft=3)
    model = Model(target)
    plain, (spec,) = open_sides(model, config, 256)
    with plain, spec:
        assert plain.runtime.model is spec.runtime.model, "the weights are there once"
        contexts = plain.runtime.context, spec.runtime.context
        assert contexts[0].target_layers == ()
        assert contexts[1].target_layers != ()
        for side, kind in ((plain, None), (spec, draft)):
            with Llama(target, draft=kind, n_draft=3, n_ctx=256, n_threads=1) as llm:
                assert side.runtime.context.params == llm.context.params
                assert side.name == llm.drafter_name
    assert all(context.is_closed for context in contexts)
    assert model.is_closed


@pytest.mark.parametrize(("lookup", "min_ngram"), [(None, 5), (3, 3), (0, None)])
def test_lookup_is_that_of_llama(tmp_path: Path, lookup: int | None, min_ngram: int | None) -> None:
    target, draft = model_path("llama"), model_path("eagle3", output_scale=0.1)
    config = tiny_config(tmp_path, model_path=target, draft=draft, lookup=lookup, repeats=1)
    assert bench.to_json(bench.run(config))["settings"]["lookup"] == lookup
    plain, (spec,) = open_sides(Model(target), config, 256)
    with plain, spec:
        drafter = spec.runtime.round.drafter._drafter
        assert (drafter.min_ngram if isinstance(drafter, LookupFirst) else None) == min_ngram


def test_no_run_copies_from_another_one(tmp_path: Path) -> None:
    """A second repeat does not copy the text of the first."""
    result = bench.run(tiny_config(tmp_path, draft="suffix", repeats=3))
    alone = bench.run(tiny_config(tmp_path, draft=Suffix(7, remembers=False), repeats=1))
    for one, other in zip(result.prompts, alone.prompts, strict=True):
        assert {pair.spec.rounds for pair in one.pairs} == {other.pairs[0].spec.rounds}


def test_an_eagle3_head_is_measured_and_its_file_noted(tmp_path: Path) -> None:
    config = tiny_config(
        tmp_path, model_path=model_path("perm"), draft=model_path("perm_eagle3"), repeats=1
    )
    report = bench.to_json(bench.run(config))
    assert report["settings"]["drafter"] == "eagle3"
    assert report["summary"]["acceptance_rate"] == 1.0
    assert report["summary"]["same_text"] is True
    assert report["time"]["spec"]["draft_s"] > 0
    assert report["files"]["draft"]["name"] == Path(str(config.draft)).name


def test_every_run_pays_its_prompt_and_the_order_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    held: list[int] = []
    prefill = SpeculativeLoop.prefill

    def spy(
        self: SpeculativeLoop, seq: SequenceState, prompt: Sequence[int], **options: Any
    ) -> None:
        calls.append(self.drafter.name)
        held.append(max(seq.n_decoded, self.target.memory.positions(seq.seq_id)[1] + 1))
        prefill(self, seq, prompt, **options)

    monkeypatch.setattr(SpeculativeLoop, "prefill", spy)
    lines = [LINES[1], {**LINES[1], "id": "again"}]
    progress: list[float] = []
    config = tiny_config(tmp_path, prompts=write_prompts(tmp_path, lines))
    result = bench.run(config, progress.append)
    one, other = "none", "prompt-lookup"
    assert calls == [one, other, one, other, one, other, other, one, other, one]
    assert set(held) == {0}, "nothing of an earlier text is reused"
    assert result.pairs[0].plain.tokens == result.pairs[3].plain.tokens
    assert progress == sorted(progress)
    assert progress[-1] == 1.0


class _Interrupts(PromptLookup):
    """Prompt lookup, until Ctrl-C or an error comes in its n-th proposal."""

    def __init__(self, at: int, error: BaseException) -> None:
        super().__init__()
        self.n_left, self.error = at, error

    def propose_one(self, request: DraftRequest) -> Draft:
        self.n_left -= 1
        if self.n_left == 0:
            raise self.error
        return super().propose_one(request)


def n_proposals(config: bench.BenchConfig) -> int:
    """How many proposals the warm-up and the first two texts ask for, and some more."""
    counter = _Interrupts(-1, KeyboardInterrupt())
    bench.run(replace(config, draft=counter, repeats=1))
    return -1 - counter.n_left + 5


def test_an_error_while_measuring_keeps_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, n = Side.run, 0

    def failing(self: Side, prompt: Sequence[int], n_tokens: int, observe: Any = None) -> Run:
        nonlocal n
        n += 1
        if n == 6:
            raise EngineError("the device is gone")
        return run(self, prompt, n_tokens, observe)

    monkeypatch.setattr(Side, "run", failing)
    result = bench.run(tiny_config(tmp_path))
    assert result.failure == "the device is gone"
    assert [prompt.id for prompt in result.prompts] == ["chat"]
    assert "the device is gone" in bench.table(result)
    assert bench.to_json(result)["failure"] == "the device is gone"


def test_a_drafter_that_fails_is_reported(tmp_path: Path) -> None:
    result = bench.run(tiny_config(tmp_path, draft=_Interrupts(1, RuntimeError("no idea"))))
    # It failed in the warm-up; its second try, in the first prompt, went well.
    assert result.comparison.spec.stats.accepted > 0
    drafter = _Interrupts(n_proposals(tiny_config(tmp_path)) - 6, RuntimeError("no idea"))
    result = bench.run(tiny_config(tmp_path, draft=drafter, repeats=1))
    assert any("no idea" in note for note in bench.to_json(result)["notes"])


def test_a_fork_is_shown_with_plain_decodings_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Side.run

    def forking(self: Side, prompt: Sequence[int], n_tokens: int, observe: Any = None) -> Run:
        got = run(self, prompt, n_tokens, observe)
        if self.name == "none":
            return got
        wrong = (*got.tokens[:7], got.tokens[7] + 1, *got.tokens[8:])
        return replace(got, tokens=wrong)

    monkeypatch.setattr(Side, "run", forking)
    result = bench.run(tiny_config(tmp_path, model_path=model_path("perm")))
    fork = result.prompts[1].fork
    assert fork is not None
    assert (fork.repeat, fork.position) == (0, 7)
    assert fork.plain_token == result.prompts[1].pairs[0].plain.tokens[7]
    # PERM's choice has a logit of 16, everything else 0.
    assert fork.top2_gap == pytest.approx(16.0, rel=1e-3)
    assert bench.to_json(result)["summary"]["same_text"] is False


def test_what_cannot_run_is_refused_before_it_runs(tmp_path: Path) -> None:
    with pytest.raises(ContextFullError, match=r"prompt 'chat' has \d+ tokens .* n_ctx=30"):
        bench.run(tiny_config(tmp_path, n_ctx=30))
    with pytest.raises(ModelLoadError, match=r"nix\.gguf"):
        bench.run(tiny_config(tmp_path, model_path=tmp_path / "nix.gguf"))
    with pytest.raises(ArgumentError, match="no name of a draft"):
        bench.run(tiny_config(tmp_path, draft="nix"))
    with pytest.raises(UnsupportedError, match="needs its target"):
        bench.run(tiny_config(tmp_path, model_path=model_path("perm_eagle3")))
    with pytest.raises(ArgumentError, match="cannot draft for"):
        bench.run(
            tiny_config(tmp_path, model_path=model_path("llama"), draft=model_path("perm_eagle3"))
        )


def test_the_report_has_the_texts_the_machine_and_the_files(result: bench.BenchResult) -> None:
    report = json.loads(json.dumps(bench.to_json(result), allow_nan=False))
    for prompt in report["prompts"]:
        assert prompt["same_text"] is True and prompt["fork"] is None
        assert prompt["speedup"] == pytest.approx(prompt["spec_tps"] / prompt["plain_tps"])
        assert 0 <= prompt["probes"] <= prompt["asked"] <= prompt["rounds"]
        assert 0 < prompt["accepted"] <= prompt["drafted"] <= prompt["proposed"]
    assert set(report["categories"]) == {"a", "b"}
    assert report["machine"]["cpu_model"] and report["versions"]["engine"]
    assert len(report["files"]["target"]["sha256"]) == 64
    assert report["started"] <= report["finished"]


def test_p_min_ends_unsure_drafts(tmp_path: Path) -> None:
    n_drafted = []
    for p_min in (None, 0.9):
        config = tiny_config(
            tmp_path, model_path=model_path("llama"), repeats=1, p_min=p_min,
            draft=model_path("eagle3", output_scale=0.1),
        )  # fmt: skip
        report = bench.to_json(bench.run(config))
        assert report["settings"]["p_min"] == p_min
        n_drafted.append(sum(prompt["drafted"] for prompt in report["prompts"]))
    assert n_drafted[0] > 0
    assert n_drafted[1] == 0
