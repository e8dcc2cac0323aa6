"""The registry: one call adds a kind of draft; wrong registrations are refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyllama_spec import ArgumentError, Llama, ModelLoadError, UnsupportedError
from pyllama_spec.drafters import (
    Committed,
    Draft,
    Drafter,
    DraftOptions,
    DraftRequest,
    Eagle3,
    LookupFirst,
    NoDrafter,
    PromptLookup,
    make_drafter,
    open_draft,
    register,
    registry,
)
from pyllama_spec.engine import Context, Model
from pyllama_spec.gguf.reader import read_keys
from tests.faces.tools import GREEDY, open_tiny
from tests.models import model_path, perm_continuation, perm_next
from tests.models.keys import write_keys

SUCCESSOR = perm_next()
N_TOKENS = 30


class Toy(Drafter):
    """Drafts for PERM from the target's rows alone: each is the one-hot row of its token."""

    name = "toy"

    def __init__(self, path: Path, options: DraftOptions) -> None:
        keys = read_keys(path, lambda name: name.startswith("toy."))
        self.path, self.options = path, options
        self.successor: list[int] = keys["toy.successor"].value
        self.target_layers = tuple(keys["toy.target_layers"].value)
        self.max_draft = 5 if options.max_draft is None else options.max_draft
        # seq -> the position of the newest row, and the token that it says.
        self.newest: dict[int, tuple[int, int]] = {}
        self.asked: list[list[int]] = []
        self.n_closed = 0

    def check(self, target: Model) -> None:
        if target.info.n_vocab != len(self.successor):
            raise ArgumentError(f"{self.path.name} was made for {len(self.successor)} tokens")

    def commit(self, done: Sequence[Committed]) -> None:
        for one in done:
            assert len(one.features) == len(self.target_layers)
            said = [[int(np.argmax(row)) for row in layer] for layer in one.features]
            assert all(tokens == said[0] for tokens in said)
            position = one.first_row + len(said[0]) - 1
            self.newest[one.seq] = position, said[0][-1]
            # The pending token, or the end of a part of the prompt, has the row before it at hand.
            assert one.start + len(one.tokens) - 1 - position in (0, 1)

    def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        """All sequences in one call, without a look at their tokens."""
        self.asked.append([request.seq for request in requests])
        drafts = []
        for request in requests:
            position, token = self.newest[request.seq]
            assert position == len(request.tokens) - 2
            ids = [self.successor[self.successor[token]]]
            while len(ids) < min(request.n_requested, self.max_draft):
                ids.append(self.successor[ids[-1]])
            drafts.append(Draft(ids))
        return drafts

    def truncate(self, seq: int, n_keep: int) -> None:
        if seq in self.newest and self.newest[seq][0] >= n_keep:
            del self.newest[seq]

    def describe(self) -> dict[str, Any]:
        return {"path": str(self.path)}

    def close(self) -> None:
        self.n_closed += 1


def write_toy(path: Path, arch: str = "toy", layers: Sequence[int] = (1, 3)) -> Path:
    """A file of the kind: keys, and no tensor."""
    successor = [int(token) for token in SUCCESSOR]
    return write_keys(path, arch, {"toy.successor": successor, "toy.target_layers": list(layers)})


@dataclass
class Opened:
    """The arguments of the kind's opener, and its results."""

    drafters: list[Toy]


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    monkeypatch.setattr(registry, "_KINDS", dict(registry._KINDS))
    opened = Opened([])

    def open_toy(path: Path, options: DraftOptions) -> Toy:
        opened.drafters.append(Toy(path, options))
        return opened.drafters[-1]

    register("toy", open_toy)
    yield opened


def prompt_of(i: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(i).integers(0, 256, size=5 + 11 * i)]


def test_a_registered_kind_drafts_for_llama(toys: Opened, tmp_path: Path) -> None:
    path = write_toy(tmp_path / "toy.gguf")
    with Llama(model_path("perm"), draft=path, controller="fixed", n_ctx=256, n_threads=1) as llm:
        for i in (2, 0, 1):
            steps = llm.generate_steps(prompt_of(i), max_tokens=N_TOKENS, **GREEDY)
            ids = [token for piece in steps for token in piece.tokens]
            assert ids == perm_continuation(prompt_of(i)[-1], N_TOKENS, SUCCESSOR)
            stats = steps.record.stats
            assert (stats.drafter, stats.reason_off) == ("toy", None)
            assert stats.accepted == stats.drafted > 0
            assert stats.rounds == 5, "one token of the prompt, then six in a round"
        assert llm.drafter_name == "toy"
    assert [toy.n_closed for toy in toys.drafters] == [1], "closed by whoever opened it"
    assert toys.drafters[0].options == DraftOptions()


def test_the_options_reach_the_opener(toys: Opened, tmp_path: Path) -> None:
    path = write_toy(tmp_path / "toy.gguf")
    options: dict[str, Any] = {"n_draft": 2, "p_min": 0.25, "lookup": 3, "n_threads": 1}
    with Llama(model_path("perm"), draft=str(path), **options) as llm:
        stats = llm([1, 2, 3], max_tokens=13, **GREEDY)["speculation"]
    assert stats["accepted_histogram"] == [0, 0, 4]
    given = toys.drafters[0].options
    assert (given.max_draft, given.p_min, given.lookup, given.n_gpu_layers) == (2, 0.25, 3, 0)


def test_its_check_comes_before_anything_is_opened(toys: Opened, tmp_path: Path) -> None:
    path = write_toy(tmp_path / "toy.gguf")
    target = model_path("perm", n_vocab=328)
    with pytest.raises(ArgumentError, match=r"toy\.gguf was made for 320 tokens"):
        Llama(target, draft=path, n_threads=1, n_ctx=10**9)
    assert len(toys.drafters) == 1


@pytest.mark.parametrize("kind", ["eagle3", "dflash", "llama", "mtp"])
def test_a_window_reaches_each_kind(kind: str) -> None:
    """With the one option, each kind's context takes less memory."""
    target = "qwen35" if kind == "mtp" else "llama"
    options = {"n_heads": 1} if kind == "mtp" else {}
    with Model(model_path(target, **options), load_mtp=True) as model:
        bytes_by_window = []
        for n_ctx in (None, 4000, 32):
            draft = "mtp" if kind == "mtp" else model_path(kind)
            with make_drafter(draft, DraftOptions(n_ctx=n_ctx)) as drafter:
                layers = tuple(drafter.target_layers)
                with Context(model, n_ctx=4096, n_threads=1, target_layers=layers) as context:
                    drafter.attach(context)
                    own: Any = drafter.drafter if isinstance(drafter, LookupFirst) else drafter
                    bytes_by_window.append(own.context.memory_bytes)
                    drafter.close()
    all_, many, few = bytes_by_window
    assert few < all_
    assert few < many <= all_


def test_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    path = write_toy(tmp_path / "mine.gguf", arch="nonsense")
    for call in (lambda: open_tiny(str(path)), lambda: open_draft(path)):
        with pytest.raises(UnsupportedError, match=r"kind 'nonsense' .*\(mine\.gguf\); .*lookup"):
            call()


def test_a_file_that_says_no_kind(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + bytes(16))
    with pytest.raises(ModelLoadError, match=r"general\.architecture is missing"):
        open_draft(path)
    data = bytearray(write_toy(tmp_path / "toy.gguf").read_bytes())
    name = data.index(b"general.architecture")
    data[name] = ord("G")
    path.write_bytes(data)
    with pytest.raises(ModelLoadError, match=r"general\.architecture is missing"):
        open_draft(path)


def test_names_and_objects() -> None:
    options = DraftOptions()
    assert isinstance(make_drafter(None, options), NoDrafter)
    assert isinstance(make_drafter("none", options), NoDrafter)
    lookup = make_drafter("prompt-lookup", DraftOptions(max_draft=3))
    assert isinstance(lookup, PromptLookup)
    assert lookup.max_draft == 3
    assert make_drafter(lookup, options) is lookup
    path = model_path("eagle3")
    for given in (path, str(path)):
        with make_drafter(given, options) as drafter:
            assert isinstance(drafter, LookupFirst)
    with make_drafter(path, DraftOptions(max_draft=2, lookup=0, p_min=0.5)) as drafter:
        assert isinstance(drafter, Eagle3)
        assert (drafter.max_draft, drafter.p_min) == (2, 0.5)
