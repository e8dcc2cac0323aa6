"""Training's text and features, without PyTorch: generation, storage, continuation."""

from __future__ import annotations

import errno
import json
import re
from pathlib import Path

import numpy as np
import pytest

from pyllama_spec.bench.config import OWN_PROMPTS
from pyllama_spec.engine import Model
from pyllama_spec.errors import UnsupportedError
from pyllama_spec.train import TrainError
from pyllama_spec.train.corpus.features import LiveFeatures
from pyllama_spec.train.corpus.generate import draw, top_k_of
from pyllama_spec.train.corpus.quality import distinct_ratio, ends_in_loop, is_repetitive
from pyllama_spec.train.corpus.tasks import (
    draw_prompt_seed,
    file_prompts,
    is_whole,
    make_source,
    own_prompts,
    read_prompt_seeds,
)
from tests.corpus.tools import LAYERS, N_TOP, config, make, tokens
from tests.models import model_path

# --- the likeliest tokens


@pytest.mark.parametrize("n_vocab", [5, 320, 5000, 49152])
def test_top_is_the_head_of_the_sorted_row(n_vocab: int) -> None:
    rng = np.random.default_rng(n_vocab)
    for scale in (0.01, 1, 30):
        row = (scale * rng.standard_normal(n_vocab)).astype(np.float32)
        row[rng.integers(0, n_vocab, n_vocab // 10)] = row[0]  # equal ones
        top = top_k_of(row, 16)
        expected = np.lexsort((np.arange(n_vocab), -row))[:16]
        assert top[0].tolist() == expected.tolist()
        log_p = row - np.logaddexp.reduce(row.astype(np.float64))
        np.testing.assert_allclose(top[1], log_p[expected], atol=2e-4)


def test_draws_follow_the_temperature() -> None:
    top = top_k_of(np.log(np.array([0.5, 0.3, 0.2], np.float32)), 3)
    rng = np.random.default_rng(0)
    assert {draw(top, 0.0, rng) for _ in range(20)} == {0}
    for temperature in (1.0, 0.5):
        p = np.array([0.5, 0.3, 0.2]) ** (1 / temperature)
        seen = np.bincount([draw(top, temperature, rng) for _ in range(4000)], minlength=3)
        np.testing.assert_allclose(seen / 4000, p / p.sum(), atol=0.03)


# --- quality


def test_a_loop_is_found_and_its_first_turns_are_kept() -> None:
    text = list(range(100, 200))
    loop = [1, 2, 3, 4, 5, 6, 7]
    n_found = [n for n in range(12) if ends_in_loop(text + loop * n)]
    assert 3 <= n_found[0] <= 7
    assert n_found[-1] == 11
    assert is_repetitive(loop * 12)
    assert not is_repetitive(text + loop * n_found[0])
    assert not ends_in_loop(loop * 2)  # too little to tell
    assert distinct_ratio([1, 2]) == 1.0


# --- prompts


def test_prompts_of_a_file_come_in_passes(writer: Model, prompts: Path) -> None:
    source = file_prompts(writer, config(prompts, max_passes=2), prompts)
    tasks = [source.task(number) for number in range(84)]
    assert all(task is not None for task in tasks)
    assert source.task(84) is None
    first, second = tasks[:42], tasks[42:]
    assert [t.prompt for t in first if t] == [t.prompt for t in second if t]
    assert {t.temperature for t in first if t} == {0.0, 1.0}
    assert {t.temperature for t in second if t} == {1.0}, "no second greedy answer"
    assert all(t and t.prompt[: len(source.shared)] == source.shared for t in tasks)
    assert all(t and len(t.prompt) > len(source.shared) for t in tasks)


def test_own_prompts_begin_where_the_template_puts_the_users_text(writer: Model) -> None:
    source = own_prompts(writer, config(None, prompt_seed_share=0.0))
    task = source.task(0)
    assert task is not None
    text = writer.vocab.detokenize(task.prompt, special=True)
    assert text == b"<|im_start|>user\n"
    after = writer.vocab.detokenize(source.after_user, special=True)
    assert after == b"<|im_end|>\n<|im_start|>assistant\n"


def test_a_share_of_own_prompts_begins_with_a_prompt_seed(writer: Model) -> None:
    source = own_prompts(writer, config(None, prompt_seed_share=0.5))

    def prompt(i: int) -> list[int]:
        task = source.task(i)
        assert task is not None
        return task.prompt

    after = writer.vocab.detokenize(source.after_user, special=True)
    texts = [writer.vocab.detokenize(prompt(i), special=True) for i in range(400)]
    begun = [
        text.removeprefix(b"<|im_start|>user\n").removesuffix(after).decode() for text in texts
    ]
    n_opened = sum(text != "" for text in begun)
    assert 160 <= n_opened <= 240
    lines = [re.escape(prompt_seed) for prompt_seed in read_prompt_seeds()]
    # Subjects stand where a line names their kind.
    known = re.compile("|".join(re.sub(r"\\\{\w+\\\}", ".+", line) for line in lines))
    assert all(known.fullmatch(text) for text in begun if text)
    assert not any("{" in text or "}" in text for text in begun)
    assert len(set(begun)) > 120
    # Of the prompt seeds that need no more words about every second one is asked as it is.
    whole = [i for i, text in enumerate(begun) if is_whole(text)]
    asked = [i for i in whole if not (source.task(i) or pytest.fail()).writes_user]
    assert all(texts[i].endswith(after) for i in asked)
    assert 0.3 * len(whole) < len(asked) < 0.7 * len(whole)
    assert not any(text.endswith(after) for i, text in enumerate(texts) if i not in asked)
    # A task is known by its number, whatever was asked for before.
    assert [prompt(i) for i in (399, 7)] == [prompt(i) for i in (399, 7)]


def test_prompt_seeds_are_not_what_is_measured() -> None:
    """A draft is not trained on the prompts that measure it."""
    lines = OWN_PROMPTS.read_text(encoding="utf-8").splitlines()
    measured = {m["content"] for line in lines for m in json.loads(line)["messages"]}
    rng = np.random.default_rng(0)
    drawn = {draw_prompt_seed(rng) for _ in range(3000)}
    assert len(drawn) > 1000
    assert not any("{" in one for one in drawn)
    assert not drawn & measured


def test_a_template_that_hides_the_users_text_asks_for_prompts() -> None:
    template = "{% for m in messages %}{{ m['content'] | upper }}{% endfor %}"
    with (
        Model(model_path("llama", chat_template=template)) as hidden,
        Model(model_path("llama", chat_template=None)) as base,
    ):
        for model in (hidden, base):
            with pytest.raises(UnsupportedError, match="--prompts"):
                make_source(model, config(None))


# --- the corpus


def test_answers_are_what_plain_decoding_says(writer: Model, tmp_path: Path, prompts: Path) -> None:
    """Greedy answers of several sequences at once equal those of one sequence alone."""
    corpus = make(writer, tmp_path / "c", config(prompts, greedy_share=1.0, max_passes=1))
    live = LiveFeatures(writer, LAYERS, N_TOP, 80, 1)
    n_equal = n_all = 0
    for sequence in corpus.sequences:
        features, n = live.of(sequence), int(np.argmax(sequence.mask))
        assert sequence.is_greedy
        for i in range(n - 1, len(sequence.tokens) - 1):
            ids, said = features.top_ids[i].tolist(), int(sequence.tokens[i + 1])
            n_all, n_equal = n_all + 1, n_equal + (said == ids[0])
            # Rows of a wide batch round differently: another choice is a near tie.
            log_p = features.top_log_p[i].astype(np.float32)
            assert log_p[0] - log_p[ids.index(said)] < 0.02
    assert n_equal / n_all > 0.97
    live.close()


def test_the_mask_is_the_answer_and_nothing_follows_its_end(writer: Model, tmp_path: Path) -> None:
    corpus = make(writer, tmp_path / "c", config(None, n_tokens=1500))
    assert corpus.n_answer >= 1500
    for sequence in corpus.sequences:
        ids = sequence.tokens.tolist()
        n = int(np.argmax(sequence.mask))
        assert sequence.mask[n:].all()
        assert not sequence.mask[:n].any()
        assert writer.vocab.detokenize(ids[:n], special=True).endswith(b"<|im_start|>assistant\n")
        assert len(ids) <= 80
        assert not any(writer.vocab.is_eog(token) for token in ids[n:-1])
    assert any(writer.vocab.is_eog(int(s.tokens[-1])) for s in corpus.sequences)


def test_more_tokens_are_appended_and_fewer_are_a_beginning(
    writer: Model, tmp_path: Path, prompts: Path
) -> None:
    few = make(writer, tmp_path / "c", config(prompts, n_tokens=200))
    many = make(writer, tmp_path / "c", config(prompts, n_tokens=500))
    again = make(writer, tmp_path / "c", config(prompts, n_tokens=200))
    assert tokens(many)[: len(few.sequences)] == tokens(few) == tokens(again)
    assert again.sha256 == few.sha256 != many.sha256
    (tmp_path / "c" / "index.json").write_text("{", encoding="utf-8")
    with pytest.raises(TrainError, match=r"index\.json"):
        make(writer, tmp_path / "c", config(prompts, n_tokens=200))


def test_a_full_disk_keeps_what_was_there(
    writer: Model, tmp_path: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = make(writer, tmp_path / "c", config(prompts, n_tokens=200))

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(np, "save", full)
        with pytest.raises(TrainError, match=r"disk is full.*--work"):
            make(writer, tmp_path / "c", config(prompts, n_tokens=400))
    assert not list(tmp_path.rglob("*.part"))
    again = make(writer, tmp_path / "c", config(prompts, n_tokens=400))
    assert tokens(again)[: len(few.sequences)] == tokens(few)
