"""Shared prefixes: copies between sequences and from a store change no text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest

from pyllama_spec.drafters import Drafter, Eagle3, NoDrafter, PromptLookup
from pyllama_spec.engine import Model, Sampler
from pyllama_spec.errors import EngineError
from pyllama_spec.speculative import Round, SequenceRun, SequenceState
from tests.models import STATES, model_path
from tests.oracles import GREEDY, prompt_tokens, run_once, tiny, tiny_context
from tests.row_drafts import further, perm_prompt
from tests.tiers import release_except

QUICK = ("llama", "gemma3", "qwen35")
ARCHS = (*QUICK, "rwkv7", "gpt-oss", "qwen3moe", "lfm2", "mamba2", "jamba")
all_archs = pytest.mark.parametrize("arch", release_except(ARCHS, QUICK))
N_CTX = 256
PLENTY = 1 << 30
SYSTEM = prompt_tokens(100, seed=77)


class Server:
    """A round with a store, and a context in which every request is computed cold."""

    def __init__(
        self,
        model: Model,
        n_seqs: int = 1,
        drafter: Drafter | None = None,
        max_bytes: int = PLENTY,
        **options: Any,
    ) -> None:
        drafter = NoDrafter() if drafter is None else drafter
        self.context = tiny_context(
            model, n_ctx=N_CTX * n_seqs, n_seq_max=n_seqs,
            target_layers=tuple(drafter.target_layers), **options,
        )  # fmt: skip
        self.cold = tiny_context(model, n_ctx=N_CTX, **options)
        self.round = Round(self.context, drafter, store_bytes=max_bytes)
        store = self.round.sequences.store
        assert store is not None
        self.store = store
        self.places = [SequenceState(i) for i in range(n_seqs)]
        self.n_read = 0
        self._rows: dict[int, list[Any]] = {}
        decode = self.round._decode_batch

        def counting(spans: Any) -> None:
            self.n_read += sum(span.n_prompt for span in spans)
            decode(spans)

        self.round._decode_batch = counting  # type: ignore[method-assign]

    def begin(self, prompt: Sequence[int], n: int = 6, place: int = 0) -> SequenceRun:
        run = SequenceRun(self.places[place], list(prompt), Sampler(self.context.model, GREEDY), n)
        rows = self._rows[id(run)] = []
        run.observe = lambda row, _: rows.append(self.context.logits(row).copy())
        self.round.begin(run)
        return run

    def finish(self, runs: Iterable[SequenceRun]) -> None:
        left = list(runs)
        for _ in range(1000):
            if not (left := [run for run in left if not run.is_over]):
                return
            self.round.step(left)
        pytest.fail(f"{left} wait for ever")

    def check(self, run: SequenceRun) -> list[int]:
        """Text and rows are those of a cold run; returns the text, prompt and all."""
        n = len(run.prompt)
        assert not run.has_failed
        want = run_once(self.cold, None, run.prompt, run.max_tokens, keep_rows=True)
        assert run.state.tokens[n:] == want.tokens
        rows = self._rows.pop(id(run))
        np.testing.assert_array_equal(np.stack(rows), np.stack(want.rows[: len(rows)]))
        return want.text

    def ask(self, prompt: Sequence[int], n: int = 6, place: int = 0) -> list[int]:
        """A request from its beginning to its end."""
        run = self.begin(prompt, n, place)
        self.finish([run])
        return self.check(run)


def server(arch: str, n_seqs: int = 1, kind: str = "none", **options: Any) -> Server:
    drafters: dict[str, Callable[[], Drafter]] = {
        "none": NoDrafter,
        "prompt-lookup": lambda: PromptLookup(6, max_ngram=3, min_ngram=1),
        "eagle3": lambda: Eagle3(model_path("eagle3"), 4),
    }
    return Server(tiny(arch, output_scale=3.0), n_seqs, drafters[kind](), **options)


@all_archs
@pytest.mark.parametrize(("kind", "n_seqs"), [("none", 1), ("eagle3", 2), ("prompt-lookup", 3)])
def test_conversations_that_alternate(arch: str, kind: str, n_seqs: int) -> None:
    """Each turn reads the new and the pending tokens, whichever conversation ran in between."""
    served = server(arch, n_seqs, kind)
    texts = [[*SYSTEM, *prompt_tokens(40, seed=i)] for i in range(4)]
    for turn in range(3):
        for i, text in enumerate(texts):
            before = served.n_read
            texts[i] = [*served.ask(text, place=(turn + i) % n_seqs), *prompt_tokens(5, seed=turn)]
            # A draft model may need the row of one more.
            assert turn == 0 or served.n_read - before <= 5 + 1 + 1
    n_first = sum(140 for _ in texts) if arch in STATES else 140 + 3 * 40
    assert served.n_read <= n_first + 8 * 7 + 3


@all_archs
@pytest.mark.parametrize("kind", ["none", "eagle3"])
def test_prompts_that_begin_alike_and_come_at_once(arch: str, kind: str) -> None:
    """One reads the common prefix, the others wait for it: two waves on four places."""
    served = server(arch, 4, kind)
    for wave in range(2):
        prompts = [[*SYSTEM, 5 + wave, *prompt_tokens(6, seed=10 * wave + i)] for i in range(4)]
        runs = [served.begin(prompt, place=i) for i, prompt in enumerate(prompts)]
        served.finish(runs)
        for run in runs:
            served.check(run)
        assert [run.n_cached >= 90 for run in runs][1:] == [True] * 3
    # Of each prompt its own end, and a draft's row. The second wave leaves the first one where no
    # state was copied, or was some tokens before: there one reads it again.
    n_again = 100 + 3 * 5 if arch in STATES else 0
    assert served.n_read <= 100 + n_again + 8 * (7 + 1)


@pytest.mark.parametrize(("arch", "layer"), [("llama", 1), ("qwen35", 1), ("lfm2", 1)])
def test_a_draft_model_has_every_token_accepted_after_copies(arch: str, layer: int) -> None:
    """PERM accepts nothing with a wrong row, or a row in a wrong place."""
    kind = "perm" if arch == "llama" else "hybrid_perm"
    options = {} if arch == "llama" else {"arch": arch}
    head = Eagle3(model_path("perm_eagle3", target_layers=(layer,)), 4)
    served = Server(tiny(kind, **options), 2, head)

    def check(run: SequenceRun) -> None:
        served.check(run)
        assert run.stats.reason_off is None
        assert run.stats.drafted == run.stats.accepted > 0

    common = perm_prompt(100)
    tails = [further([*common, 40 + i], 20) for i in range(4)]
    runs = [served.begin(tails[i], 12, place=i) for i in range(2)]  # one waits for the other
    served.finish(runs)
    assert runs[1].n_cached >= 99
    for run in runs:
        check(run)
    for i in (2, 3, 0, 1, 2):  # from the store, and back
        run = served.begin(further(tails[i], 3), 12, place=i % 2)
        served.finish([run])
        check(run)
        tails[i] = list(run.state.tokens)
    assert len(served.store) > 0


@pytest.mark.parametrize("arch", ["llama", "qwen35"])
@pytest.mark.parametrize("end", ["cancelled", "failed", "left out"])
def test_who_waits_goes_on_when_the_other_does_not(arch: str, end: str) -> None:
    """Three requests wait for the first, which ends after it has read a part."""
    served = server(arch, 4)
    prompts = [[*SYSTEM, *prompt_tokens(20, seed=i)] for i in range(4)]
    runs = [served.begin(prompt, place=i) for i, prompt in enumerate(prompts)]
    served.round.step(runs)
    assert [run.state.n_decoded for run in runs] == [32, 0, 0, 0]
    if end == "cancelled":
        runs[0].is_cancelled = True
    elif end == "failed":
        decode = served.round._decode_batch

        def failing(spans: Any) -> None:
            served.round._decode_batch = decode  # type: ignore[method-assign]
            raise EngineError("made to fail")

        served.round._decode_batch = failing  # type: ignore[method-assign]
    served.finish(runs[1:] if end == "left out" else runs)
    for run in runs[1:]:
        served.check(run)
    if end != "left out":
        assert runs[0].has_failed
    before = served.n_read
    run = served.begin([*SYSTEM, 9, 9, 9], place=0)
    served.finish([run])
    served.check(run)
    assert arch in STATES or served.n_read - before == 3


@pytest.mark.parametrize("arch", ["llama", "qwen35"])
def test_the_store_keeps_within_its_bound(arch: str) -> None:
    whole = server(arch)
    for i in range(2):
        whole.ask(prompt_tokens(80, seed=i))
    one = whole.store.n_bytes
    assert len(whole.store) == 1
    assert one > 0
    served = server(arch, max_bytes=3 * one + one // 2)
    for i in range(8):
        served.ask(prompt_tokens(80, seed=i))
        assert served.store.n_bytes <= served.store.max_bytes
    assert len(served.store) == 3
    before = served.n_read
    served.ask([*prompt_tokens(80, seed=6), 5, 6, 7])  # the one before the last
    assert served.n_read - before <= 4
    before = served.n_read
    served.ask([*prompt_tokens(80, seed=0), 5, 6, 7])  # the oldest has made room
    assert served.n_read - before == 83
    small = server(arch, max_bytes=one // 2)
    for i in range(3):
        small.ask(prompt_tokens(80, seed=i))
    assert (len(small.store), small.store.n_bytes) == (0, 0)
