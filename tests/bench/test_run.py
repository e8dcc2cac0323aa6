"""Whole benchmarks on tiny models: both sides, kept files, refused options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyllama_spec import Llama, bench
from pyllama_spec.bench.sides import Run, Side, open_sides
from pyllama_spec.drafters import Suffix
from pyllama_spec.engine import Model
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


def test_no_run_copies_from_another_one(tmp_path: Path) -> None:
    """A second repeat does not copy the text of the first."""
    result = bench.run(tiny_config(tmp_path, draft="suffix", repeats=3))
    alone = bench.run(tiny_config(tmp_path, draft=Suffix(7, remembers=False), repeats=1))
    for one, other in zip(result.prompts, alone.prompts, strict=True):
        assert {pair.spec.rounds for pair in one.pairs} == {other.pairs[0].spec.rounds}


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


def test_a_fork_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Side.run

    def forking(self: Side, *args: Any) -> Run:
        got = run(self, *args)
        wrong = (*got.tokens[:7], got.tokens[7] + 1, *got.tokens[8:])
        return got if self.name == "none" else replace(got, tokens=wrong)

    monkeypatch.setattr(Side, "run", forking)
    result = bench.run(tiny_config(tmp_path, model_path=model_path("perm")))
    assert result.prompts[1].fork == 7
    assert bench.to_json(result)["summary"]["same_text"] is False


# ---- several drafts in one run, each against the same plain texts


def test_each_draft_has_figures_of_its_own(tmp_path: Path) -> None:
    """On PERM: a head and a block draft that are always right, and no draft."""
    config = tiny_config(
        tmp_path, model_path=model_path("perm"), draft=model_path("perm_eagle3"),
        also=(model_path("perm_dflash"), "none"), n_draft=3, repeats=2, lookup=0,
    )  # fmt: skip
    chain = bench.to_json(bench.run(config))
    block, nothing = chain["others"]
    assert [one["settings"]["drafter"] for one in (chain, block, nothing)] == [
        "eagle3", "dflash", "none",
    ]  # fmt: skip
    for one in (chain, block):
        assert one["summary"]["acceptance_rate"] == 1.0
        assert one["files"]["draft"]["name"].endswith(".gguf")
    assert nothing["summary"]["tokens_per_round"] == 1.0
    assert "draft" not in nothing["files"]
    plain = [one["summary"]["plain_tps"] for one in (chain, block, nothing)]
    assert plain[0] == plain[1] == plain[2], "one plain run serves all"
    assert all(one["summary"]["same_text"] for one in (chain, block, nothing))
    assert "others" not in block
