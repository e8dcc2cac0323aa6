"""Trains a draft further from its owner's use.

The texts are those of a draft memory, only ids; the target's features of them are computed again
and stay in memory, so that a run leaves only the draft. A store holds a conversation in parts: each
has what a turn added, after the MAX_MATCH tokens before it. The target read everything before a
part, so the parts are joined again. A text longer than the read limit is cut into overlapping
pieces, and the windows to learn from are cut out of them.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from pyllama_spec.drafters.suffix.memory import RememberedText
from pyllama_spec.drafters.suffix.store import Store, vocabulary_digest
from pyllama_spec.drafters.suffix.token_index import MAX_MATCH
from pyllama_spec.drafters.suffix.upkeep import parents_of
from pyllama_spec.gguf.reader import read_table
from pyllama_spec.train.config import N_TOP, RunConfig
from pyllama_spec.train.corpus.generate import Generator, TargetFeatures
from pyllama_spec.train.corpus.quality import fingerprint, is_repetitive
from pyllama_spec.train.corpus.store import Corpus, TextSequence, hash_tokens
from pyllama_spec.train.corpus.tasks import has_template, make_source
from pyllama_spec.train.errors import TrainError, writing
from pyllama_spec.train.files import keep_old
from pyllama_spec.train.progress import Reporter, interruptions
from pyllama_spec.train.run.export import write_draft
from pyllama_spec.train.run.fit import Checkpoints, Fit
from pyllama_spec.train.run.kind import H, Inputs, Kind
from pyllama_spec.train.run.objective import Acceptance, no_gain
from pyllama_spec.train.run.pipeline import RunBase, device_of, wants_bf16
from pyllama_spec.train.run.target_weights import TargetWeights, read_weights

# The key of a thread: tokens of its first text, after the leading ones.
_KEY_TOKENS = 64
# Tokens that a window has before the first one that is learned, where there are as many.
_LEAD = 128
# The most tokens that a text needs from the text before it.
_MOST_BEFORE = 1 << 14

Bytes = npt.NDArray[np.uint8]


@dataclass(slots=True, eq=False)
class Thread:
    """A text as the target read it, joined from a store's parts."""

    key: float  # a number in 0 .. 1 from its first text; the same in every read of the store
    ids: list[int] = field(default_factory=list)  # its tokens
    # 0 for each given token, and for tokens of another thread; else the target chose it
    origins: bytearray = field(default_factory=bytearray)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a thread to read at once, and the windows to learn from."""

    key: float  # the key of the thread
    sequence: TextSequence  # its tokens; the mask marks those to learn
    windows: list[tuple[int, TextSequence]]  # the start of each window, and its sequence


def newest_with_answers(texts: Sequence[RememberedText], n_tokens: int) -> set[int]:
    """The newest texts that together have n tokens of a target's own."""
    chosen: set[int] = set()
    n = 0
    for i in range(len(texts) - 1, -1, -1):
        if n >= n_tokens:
            break
        n_own = int(np.count_nonzero(texts[i].origins))
        if n_own:
            chosen.add(i)
            n += n_own
    return chosen


def threads_of(texts: Sequence[RememberedText], chosen: set[int]) -> list[Thread]:
    """Joins texts with their continuations.

    Returns:
        The threads with something to learn, in the order of their first texts.
    """
    parents = parents_of(texts, chosen)
    threads: list[Thread] = []
    # The thread of each text, and the position of its first token there.
    places: dict[int, tuple[Thread, int]] = {}
    for i in sorted(parents):
        text, parent = texts[i], parents[i]
        ids, n_lead = text.ids.tolist(), 0 if parent is None else MAX_MATCH
        origins = text.origins.tobytes() if i in chosen else bytes(len(ids))
        thread = None
        if parent is not None:
            before, at = places[parent[0]]
            thread, end = before, at + parent[1]
        if thread is None or end < len(thread.ids):
            context = [] if thread is None else thread.ids[max(end - _MOST_BEFORE, 0) : end]
            thread = Thread(_key(ids[n_lead:]), context, bytearray(len(context)))
            threads.append(thread)
        places[i] = thread, len(thread.ids) - n_lead
        thread.ids += ids[n_lead:]
        thread.origins += origins[n_lead:]
    return [thread for thread in threads if any(thread.origins)]


def _key(ids: Sequence[int]) -> float:
    digest = fingerprint(list(ids[:_KEY_TOKENS]))
    return int.from_bytes(digest, "little") / (1 << 8 * len(digest))


def pieces_of(threads: Sequence[Thread], n_piece: int, n_window: int) -> list[Piece]:
    """The pieces of threads, each with its windows."""
    out: list[Piece] = []
    n_lead = min(_LEAD, n_window // 4)
    for thread in threads:
        ids = np.array(thread.ids, np.uint32)
        origins = np.frombuffer(bytes(thread.origins), np.uint8)
        for first, end, own in _cuts(origins, n_piece, n_piece // 4):
            # The preceding tokens, as far as there is room.
            begin = max(min(first, end - n_piece), 0)
            part = _sequence(len(out), ids, origins, begin, end, own)
            windows = [
                (a, _sequence(len(out), part.tokens, origins[begin:end], a, b, max(c, own - begin)))
                for a, b, c in _cuts(_learned(origins[begin:end], own - begin), n_window, n_lead)
            ]
            out.append(Piece(thread.key, part, windows))
    return out


def _learned(origins: Bytes, own: int) -> Bytes:
    out: Bytes = origins.copy()
    # Nothing is predicted before there is a row of a token and the token after it.
    out[: max(own, 2)] = 0
    return out


def _cuts(origins: Bytes, most: int, n_lead: int) -> Iterator[tuple[int, int, int]]:
    """The ranges of a text's parts, and where the new tokens of each start.

    Every token to learn is in one of them, and no part ends with given tokens.
    """
    at = np.flatnonzero(origins)
    done = 0
    while len(at := at[at >= done]):
        begin = max(int(at[0]) - n_lead, 0)
        last = int(at[at < begin + most][-1])
        yield begin, last + 1, done
        done = last + 1


def _sequence(
    number: int, ids: npt.NDArray[np.uint32], origins: Bytes, begin: int, end: int, own: int
) -> TextSequence:
    its = _learned(origins[begin:end], own - begin)
    return TextSequence(number, ids[begin:end], its > 0, True)


def apart(keys: Sequence[float], share: float) -> tuple[set[float], set[float]]:
    """The keys of the held-out threads: to choose the best weights, and for the final comparison.

    The key depends on a thread's text, so a held-out thread is held out in later runs too.
    """
    order = sorted(set(keys))
    n_judging = min(max(bisect_left(order, share / 2), 1), len(order) - 2)
    n_held = min(max(bisect_left(order, share), n_judging + 1), len(order) - 1)
    return set(order[n_judging:n_held]), set(order[:n_judging])


# Tokens that are read at once: what came before them does not change what is learned by much.
_PIECE_TOKENS = 2048
# Sequences of other text that are written at once, and the most that may be dropped.
_PARALLEL, _MAX_DROPPED = 16, 64
# The share of tokens per round on other text that may be lost.
_MAX_LOSS = 0.1
# The matrix types by their numbers in a file; the first one found is the draft's.
_TYPES = {8: "q8_0", 30: "bf16", 1: "f16", 0: "f32"}


@dataclass(frozen=True, slots=True)
class UseReport:
    """The result of a run from use.

    Attributes:
        path: the draft's file; for a link, the file that it points to was replaced.
        kept: the path of the previous file; None if there was none, or if it stays in place.
        why_not: the reason why the file was not replaced; "" if it was.
        before, after: the acceptance of both drafts on conversations that neither was fitted to.
        others_before, others_after: the same on other text, which the target has just written.
        n_conversations, n_answer_tokens: the text that was learned from.
        n_tokens_seen: answer tokens over all passes.
        seconds: the time of each stage.
        notes: remarks for the user.
    """

    path: Path
    kept: Path | None
    why_not: str
    before: Acceptance
    after: Acceptance
    others_before: Acceptance
    others_after: Acceptance
    n_conversations: int
    n_answer_tokens: int
    n_tokens_seen: int
    seconds: dict[str, float]
    notes: tuple[str, ...]

    @property
    def is_replaced(self) -> bool:
        """Whether the file was replaced."""
        return not self.why_not


class UseRun(RunBase[H]):
    """One run."""

    def __init__(self, kind: Kind[H, Any], reporter: Reporter) -> None:
        config: RunConfig = kind.config
        assert config.use is not None
        super().__init__(kind, config.begun_with, reporter)
        assert self._init is not None
        self._use, self._draft = config.use, self._init
        # If the path is a link, its target is replaced, and the link stays.
        self._out = Path(os.path.realpath(config.out))

    def run(self) -> UseReport:
        """Trains a new draft, and replaces the old one if the new one is better."""
        weights = read_weights(self._config.target, self._model.info)
        return self._learn(weights, self._pieces())

    @property
    def _begins_with_target(self) -> bool:
        """Whether the run starts with the target's own head."""
        return self._config.begun_with == self._config.target

    def _type(self) -> str:
        """The matrix type of the new file: the old draft's, if there is one."""
        config = self._config
        if self._begins_with_target:
            return config.export_type
        return _type_of(config.begun_with, self._draft.tensors)

    # ---- the text

    def _pieces(self) -> list[Piece]:
        use = self._use
        store = Store(use.store, vocabulary_digest(self._model.vocab), is_read_only=True)
        try:
            texts = store.texts()
            chosen = newest_with_answers(texts, use.n_tokens)
            n_window = self._config.corpus.n_ctx
            pieces = pieces_of(threads_of(texts, chosen), max(_PIECE_TOKENS, n_window), n_window)
        finally:
            store.close()
        n_vocab = self._model.info.n_vocab
        pieces = [p for p in pieces if p.windows and int(p.sequence.tokens.max()) < n_vocab]
        n = len({piece.key for piece in pieces})
        if n < 3:  # one to learn from, one to choose the best weights by, one to judge
            raise TrainError(
                f"the draft memory {use.store} has {n} conversations with answers, and training "
                "needs at least 3; use it for more requests (files of `memory build` do not count)"
            )
        return pieces

    def _compute(self, pieces: list[Piece]) -> list[TargetFeatures]:
        """The features of all windows."""
        total, done = sum(len(piece.sequence.tokens) for piece in pieces), 0
        n_piece = max(len(piece.sequence.tokens) for piece in pieces)
        out: list[TargetFeatures] = []
        live = self._live_features(n_piece, reuses=True)
        with contextlib.closing(live), interruptions() as interrupted:
            for piece in pieces:
                read = live.of(piece.sequence)
                for begin, window in piece.windows:
                    of = slice(begin, begin + len(window.tokens))
                    parts = (read.rows[of], read.top_ids[of], read.top_log_p[of])
                    out.append(TargetFeatures(*(part.copy() for part in parts)))
                done += len(piece.sequence.tokens)
                note = f"{done} of {total} tokens"
                self._reporter.progress("reading features", done / total, note)
                if interrupted.is_set():
                    raise KeyboardInterrupt
        return out

    def _other_text(self) -> list[tuple[TextSequence, TargetFeatures]]:
        """Greedy answers that do not come from the store."""
        n_wanted, out = self._use.n_other_tokens, []
        has_prompts = self._config.corpus.prompts is not None or has_template(self._model)
        if not n_wanted or not has_prompts:
            return []
        config = replace(
            self._config.corpus, n_tokens=n_wanted, n_parallel=_PARALLEL, greedy_share=1.0
        )
        generator = Generator(
            self._model, make_source(self._model, config), config, target_layers=self._layers,
            n_top=N_TOP, n_threads=self._n_threads,
        )  # fmt: skip
        n = n_dropped = 0
        with contextlib.closing(generator), interruptions() as interrupted:
            for done in generator.run(0):
                if interrupted.is_set():
                    raise KeyboardInterrupt
                if done is None:
                    continue
                answer = done.tokens[done.n_prompt :]
                is_short = len(answer) < config.min_answer
                if done.finish == "user" or is_short or is_repetitive(answer):
                    n_dropped += 1
                elif done.features is not None:
                    tokens = np.array(done.tokens, np.uint32)
                    mask = np.arange(len(tokens)) >= max(done.n_prompt, 2)
                    out.append((TextSequence(done.number, tokens, mask, True), done.features))
                    n += len(answer)
                note = f"{n} tokens"
                self._reporter.progress("writing other text", min(n / n_wanted, 1.0), note)
                if n >= n_wanted or n_dropped >= _MAX_DROPPED:
                    break
        return out

    # ---- the draft

    def _learn(self, weights: TargetWeights, pieces: list[Piece]) -> UseReport:
        config, start = self._config, perf_counter()
        sequences = [window for piece in pieces for _, window in piece.windows]
        keys = [piece.key for piece in pieces for _ in piece.windows]
        n_conversations = len(set(keys))
        self._reporter.line(
            f"text: {sum(s.n_answer for s in sequences)} answer tokens of {n_conversations} "
            "conversations"
        )
        features, other_text = self._compute(pieces), self._other_text()
        others = list(range(len(sequences), len(sequences) + len(other_text)))
        sequences += [sequence for sequence, _ in other_text]
        features += [its for _, its in other_text]
        self._seconds["features"], start = perf_counter() - start, perf_counter()
        choosing, judging = apart(keys, self._use.held_out)
        train = [i for i, key in enumerate(keys) if key not in choosing | judging]
        held_out = [i for i, key in enumerate(keys) if key in choosing]
        judged = [i for i, key in enumerate(keys) if key in judging]
        learned = [sequences[i] for i in train]
        vocab = self._kind.vocab(learned, self._draft)
        corpus = Corpus(sequences, [], hash_tokens(sequences))
        inputs = Inputs(weights, self._layers, corpus, features.__getitem__, vocab, train, held_out)
        head = self._kind.known_head(inputs, self._draft)
        head.load_tensors(self._draft.tensors)
        device = device_of(config)
        head = head.to(device)
        n_answer = sum(s.n_answer for s in learned)
        fit = Fit(
            self._kind, head, inputs, Checkpoints(None, {}), bf16=wants_bf16(config, device),
            reporter=self._reporter,
        )  # fmt: skip
        before, others_before = fit.measure(judged), fit.measure(others)
        state = fit.run()
        fit.load_best()
        self._seconds["training"] = perf_counter() - start
        new = self._out.with_name(f"{self._out.name}.new")
        try:
            # Nothing of the texts, not even a hash.
            write_draft(
                self._kind, head, inputs, new, export_type=self._type(), init=self._draft,
                facts={"tokens": state.n_tokens, "corpus_tokens": n_answer},
            )  # fmt: skip
            # The weights as the file has them: its type has fewer digits.
            head.load_tensors(self._kind.read_draft(new).tensors)
            after, others_after = fit.measure(judged), fit.measure(others)
            why_not = why_no_better(before, after, others_before, others_after)
            kept = None if why_not else _put(new, self._out)
        finally:
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
        return UseReport(
            config.out, kept, why_not, before, after, others_before, others_after,
            n_conversations, n_answer, state.n_tokens, self._seconds, tuple(self._notes),
        )  # fmt: skip


def why_no_better(
    before: Acceptance,  # the old draft's acceptance on held-out conversations
    after: Acceptance,  # the new draft's
    others_before: Acceptance,  # the old draft's acceptance on other text
    others_after: Acceptance,  # the new draft's
) -> str:
    """The reason why the old file stays; "" if the new draft replaces it."""
    if not after.n_rounds:
        return str(after)
    if why_not := no_gain(before, after):
        return why_not
    least = (1 - _MAX_LOSS) * others_before.tokens_per_round
    if others_before.n_rounds and others_after.tokens_per_round < least:
        return (
            f"other text has {others_after.tokens_per_round:.2f} tokens per round, and had "
            f"{others_before.tokens_per_round:.2f}: more than {100 * _MAX_LOSS:.0f}% are lost"
        )
    return ""


def _type_of(path: Path, names: Iterable[str]) -> str:
    """The matrix type of some tensors of a draft's file."""
    tensors = read_table(path).tensors
    matrices = (tensors[name] for name in names if name in tensors)
    types = {tensor.type_id for tensor in matrices if len(tensor.shape) == 2}
    return next((name for number, name in _TYPES.items() if number in types), "f16")


def _put(new: Path, path: Path) -> Path | None:
    """Renames a new file to an old one's name, and keeps the old file; returns its new name."""
    if path.exists():
        new.chmod(path.stat().st_mode & 0o777)
    kept = keep_old(path)
    try:
        with writing(path, keeps=False):
            new.replace(path)
    except BaseException:
        if kept is not None:
            kept.unlink()
        raise
    return kept
