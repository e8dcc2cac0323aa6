"""The stages of a training run. Imports PyTorch; train/api.py reports if it is missing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, Generic

import numpy as np
import torch

from pyllama_spec.engine.system import bounded_n_threads
from pyllama_spec.train.config import N_TOP, RunConfig
from pyllama_spec.train.corpus.build import build_corpus, corpus_identity
from pyllama_spec.train.corpus.draft_vocab import (
    DraftVocab,
    choose_draft_vocab,
    choose_size,
    coverage,
    ending_tokens,
    head_bytes,
)
from pyllama_spec.train.corpus.features import (
    FeatureSource,
    FeatureStore,
    LiveFeatures,
    feature_folder,
    store_features,
)
from pyllama_spec.train.corpus.generate import token_bytes
from pyllama_spec.train.corpus.selection import split
from pyllama_spec.train.corpus.store import Corpus, CorpusStore
from pyllama_spec.train.corpus.tasks import has_template
from pyllama_spec.train.errors import TrainError
from pyllama_spec.train.files import locked, read_json, write_json
from pyllama_spec.train.progress import Reporter, time_of_run
from pyllama_spec.train.run.export import write_draft
from pyllama_spec.train.run.fit import Checkpoints, Fit, FitState
from pyllama_spec.train.run.kind import H, Inputs, Kind
from pyllama_spec.train.run.objective import Acceptance, no_gain
from pyllama_spec.train.run.target_weights import TargetWeights, read_weights

# Tokens of all text per answer token, prompts included, and a token's bytes beside its features.
_TEXT_SHARE, _TOKEN_BYTES = 1.3, 5
# A product of the size that training is made of, to see which precision is faster.
_TRIAL_ROWS, _TRIAL_WIDTH, _TRIAL_REPEATS = 1024, 1024, 5


@dataclass(frozen=True, slots=True)
class TrainReport:
    """The result of a run.

    Attributes:
        path, n_bytes: the draft's file; n_bytes is 0 if none was written.
        why_not: the reason why none was written; "" if one was.
        untrained, trained: acceptance of greedy drafts on held-out greedy text.
        n_sequences, n_answer_tokens: the size of the text.
        n_tokens_seen: answer tokens over all passes.
        coverage: the share of answer tokens in the draft vocabulary.
        seconds: the time of each stage, in this run alone.
        notes: remarks for the user.
    """

    path: Path
    n_bytes: int
    untrained: Acceptance
    trained: Acceptance
    n_sequences: int
    n_answer_tokens: int
    n_tokens_seen: int
    coverage: float
    seconds: dict[str, float]
    notes: tuple[str, ...]
    why_not: str = ""


class RunBase(Generic[H]):
    """What runs of both sorts have: a kind of draft on a target, and the earlier draft if any."""

    def __init__(self, kind: Kind[H, Any], init_path: Path | None, reporter: Reporter) -> None:
        config: RunConfig = kind.config
        self._kind, self._config, self._reporter = kind, config, reporter
        self._model, n_layer = kind.model, kind.model.info.n_layer
        self._init = None if init_path is None else kind.read_draft(init_path)
        self._layers = config.head.target_layers or kind.default_layers(n_layer)
        if self._init is not None:
            self._layers = self._init.shape.target_layers
        self._model.check_layer_inputs(self._layers)
        self._seconds: dict[str, float] = {}
        self._notes = kind.notes(self._layers)
        self._n_threads = bounded_n_threads(config.n_threads or None)
        torch.set_num_threads(self._n_threads)

    @property
    def _width(self) -> int:
        """The numbers of a row of features."""
        return len(self._layers) * self._model.info.n_embd

    def _live_features(self, n_ctx: int, *, reuses: bool = False) -> LiveFeatures:
        return LiveFeatures(self._model, self._layers, N_TOP, n_ctx, self._n_threads, reuses=reuses)


class Pipeline(RunBase[H]):
    """A run in stages; each resumes where an earlier run stopped."""

    def __init__(self, kind: Kind[H, Any], reporter: Reporter) -> None:
        super().__init__(kind, kind.config.init, reporter)
        self._work = self._config.work_dir
        self._own = self._work / self._config.kind

    def run(self) -> TrainReport:
        """Trains the draft."""
        with locked(self._work / ".lock", "--work folder"):
            weights = read_weights(self._config.target, self._model.info)
            corpus, source = self._text(weights.sha256)
            with closing(source):
                return self._fit(*self._head(weights, corpus, source))

    def _text(self, target_sha256: str) -> tuple[Corpus, FeatureSource]:
        """Builds the corpus and its features."""
        config, start = self._config, perf_counter()
        model, layers = self._model, self._layers
        if not has_template(model):
            how = "it writes documents" if config.corpus.prompts is None else "messages get ChatML"
            self._reporter.line(f"{model.path.name} has no chat template: {how}")
        identity = corpus_identity(config.corpus, target_sha256)
        store = FeatureStore(
            feature_folder(self._work, layers),
            {**identity, "target_layers": list(layers), "n_top": N_TOP},
            token_bytes(self._width, N_TOP),
            config.max_disk_bytes,
        )
        estimate = time_of_run(config.fit.epochs, self._reporter)

        def report(fraction: float, note: str) -> None:
            estimate(fraction)
            self._reporter.progress("writing text", min(fraction, 0.999), note)

        texts = CorpusStore(self._work / "corpus", identity)
        n_known = texts.n_answer
        self._reporter.line(self._plan(n_known, store))
        corpus = build_corpus(
            model, config.corpus, texts, features=store, target_layers=layers, n_top=N_TOP,
            n_threads=self._n_threads, on_progress=report,
        )  # fmt: skip
        dropped = ", ".join(f"{n} {reason}" for reason, n in sorted(texts.dropped.items()))
        self._reporter.line(
            f"text: {corpus.n_answer} answer tokens in {len(corpus.sequences)} sequences "
            f"(dropped: {dropped or 'none'})"
        )
        if corpus.n_answer < config.corpus.n_tokens:
            self._notes.append(
                f"the prompts gave {corpus.n_answer} of {config.corpus.n_tokens} answer tokens"
            )
        if n_known < config.corpus.n_tokens:
            self._seconds["text"] = perf_counter() - start
        return corpus, self._features(corpus, texts, store)

    def _plan(self, n_known: int, store: FeatureStore) -> str:
        """Reports the planned work and the disk space it needs."""
        config = self._config
        n_wanted = config.corpus.n_tokens
        if n_known >= n_wanted:
            return f"text: {n_known} answer tokens of an earlier run"
        n_bytes = (n_wanted - n_known) * _TEXT_SHARE * (store.token_bytes + _TOKEN_BYTES)
        need, free = min(n_bytes, config.max_disk_bytes), shutil.disk_usage(self._work).free
        known = f", {n_known} of an earlier run" if n_known else ""
        short = "" if need < free else ": NOT ENOUGH, give a smaller --max-disk"
        return (
            f"text: {n_wanted} answer tokens are to be written{known}; with features about "
            f"{need / 1e6:.0f} MB, {free / 1e9:.0f} GB are free (--max-disk "
            f"{config.max_disk_bytes / 1e9:g}){short}"
        )

    def _features(self, corpus: Corpus, texts: CorpusStore, store: FeatureStore) -> FeatureSource:
        config, start = self._config, perf_counter()

        def live() -> LiveFeatures:
            return self._live_features(config.corpus.n_ctx)

        def report(done: int, total: int) -> None:
            note = f"{done} of {total} tokens"
            self._reporter.progress("reading features", done / total, note)

        n_before = store.n_bytes
        n_shards = 1 + max(shard for shard, _ in corpus.places)
        store_features(texts, n_shards, store, live, report)
        source = FeatureSource(corpus, texts, store, live)
        n_live = source.n_live_tokens
        self._reporter.line(
            f"features: {store.n_bytes / 1e9:.2f} GB on disk"
            + (f", those of {n_live} tokens are computed again in every epoch" if n_live else "")
        )
        if store.n_bytes > n_before:
            self._seconds["features"] = perf_counter() - start
        return source

    def _vocab(self, start: Inputs) -> DraftVocab:
        corpus = start.corpus
        n_vocab, always = self._model.info.n_vocab, ending_tokens(self._model.vocab)
        vocab = self._kind.vocab(corpus.sequences, self._init)
        if vocab is None:
            size = self._config.head.n_draft_vocab or self._vocab_size(start, always)
            vocab = choose_draft_vocab(corpus.sequences, n_vocab, size, always)
        self._reporter.line(
            f"vocabulary of the loss: {len(vocab.d2t)} of {n_vocab} tokens, "
            f"{_share(vocab.coverage)} of the answers' tokens"
        )
        return vocab

    def _vocab_size(self, start: Inputs, always: Sequence[int]) -> int:
        """Chooses the defaults of missing options, and reports their cost."""
        n_vocab, target_bytes = self._model.info.n_vocab, self._model.info.size_bytes
        few, all_ = (
            self._kind.shape(replace(start, vocab=DraftVocab(ids, ids, 0.0))).sizes()
            for ids in (np.zeros(1, np.int64), np.zeros(n_vocab, np.int64))
        )
        weighs = head_bytes(few, all_, n_vocab - 1, self._config.export_type)
        covered = coverage(start.corpus.sequences, n_vocab, always)
        size = choose_size(covered, weighs, target_bytes, len(set(always)))
        self._reporter.line(
            f"the draft's weights: {weighs(size) / 1e6:.1f} MB, "
            f"{100 * weighs(size) / target_bytes:.0f}% of the target's; of text that was not "
            f"counted its vocabulary has {_share(float(covered[size]))}"
        )
        return size

    def _head(
        self, weights: TargetWeights, corpus: Corpus, source: FeatureSource
    ) -> tuple[H, Inputs]:
        """Creates the head on its device with its initial weights, and the text to learn from."""
        config, init = self._config, self._init
        train, held_out = split(corpus, config.fit.held_out, config.fit.max_held_out)
        if not held_out:
            self._notes.append("no answer at temperature 0 is held out: nothing was measured")
        none = np.zeros(0, np.int64)
        no_vocab = DraftVocab(none, none, 0.0)
        start = Inputs(weights, self._layers, corpus, source.get, no_vocab, train, held_out)
        start = replace(start, vocab=self._vocab(start))
        if init is not None:
            head = self._kind.known_head(start, init)
            head.load_tensors(init.tensors)
        else:
            head = self._kind.new_head(start, self._reporter)
        return head.to(device_of(config)), start

    def _fit(self, head: H, text: Inputs) -> TrainReport:
        config, start = self._config, perf_counter()
        bf16 = wants_bf16(config, head.embedding.device.type, self._work / "precision.json")
        identity = _flat(
            {
                "target_sha256": text.weights.sha256, "corpus_sha256": text.corpus.sha256,
                "head": asdict(head.sizes), "n_top": N_TOP,
                "fit": {**asdict(config.fit), "precision": "bf16" if bf16 else "fp32"},
                **({} if self._init is None else {"init_sha256": self._init.sha256}),
            }
        )  # fmt: skip
        folder = self._own / "checkpoints"
        if config.restart:
            shutil.rmtree(folder, ignore_errors=True)
        n_weights = sum(parameter.numel() for parameter in head.parameters())
        checkpoints = Checkpoints(folder, identity)
        fit = Fit(self._kind, head, text, checkpoints, bf16=bf16, reporter=self._reporter)
        self._reporter.line(
            f"head: {n_weights / 1e6:.1f} M weights, {fit.n_steps} steps in "
            f"{'bfloat16' if bf16 else 'float32'} on {head.embedding.device.type}"
            + (f", continuing at step {fit.state.step}" if fit.state.step else "")
        )
        state = fit.run()
        assert state.untrained is not None
        fit.load_best()
        trained = fit.measure()
        write_json(self._own / "curves.json", state.course)
        self._seconds["training"] = perf_counter() - start
        return self._write(head, text, state, trained)

    def _write(self, head: H, text: Inputs, state: FitState, trained: Acceptance) -> TrainReport:
        """Writes the file with its provenance."""
        config = self._config
        assert state.untrained is not None
        facts = {
            "corpus_sha256": text.corpus.sha256,
            "tokens": state.n_tokens, "corpus_tokens": text.corpus.n_answer,
            "acceptance": json.dumps([round(share, 4) for share in trained.by_depth]),
            "tokens_per_round": float(trained.tokens_per_round),
        }  # fmt: skip
        why_not = no_gain(state.untrained, trained) if self._kind.must_gain else ""
        n_bytes = 0 if why_not else write_draft(
            self._kind, head, text, config.out, export_type=config.export_type,
            init=self._init, facts=facts, reporter=self._reporter,
        )  # fmt: skip
        return TrainReport(
            config.out, n_bytes, state.untrained, trained, len(text.corpus.sequences),
            text.corpus.n_answer, state.n_tokens, text.vocab.coverage, self._seconds,
            tuple(self._notes), why_not,
        )  # fmt: skip


def _share(part: float) -> str:
    """A share as a percentage, or "all" for exactly all."""
    return "all" if part >= 1 else f"{min(100 * part, 99.99):.2f}%"


def device_of(config: RunConfig) -> str:
    """The device to train on, "cpu" or "cuda"."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise TrainError("PyTorch sees no CUDA device; leave --device out, or use 'cpu'")
    return config.device or ("cuda" if torch.cuda.is_available() else "cpu")


def wants_bf16(config: RunConfig, device: str, path: Path | None = None) -> bool:
    """Whether to compute products in bfloat16: "auto" measures on the CPU if they are faster.

    `path` is the file of what the first of several runs measured.
    """
    if config.fit.precision != "auto":
        return config.fit.precision == "bf16"
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    known: dict[str, float] | None = None if path is None else read_json(path)
    if known is None:
        known = {"bf16": _product_s(torch.bfloat16), "fp32": _product_s(torch.float32)}
        if path is not None:
            write_json(path, known)
    return known["bf16"] < 0.8 * known["fp32"]


def _product_s(dtype: torch.dtype) -> float:
    """The seconds of a product in a type, the minimum of some."""
    a = torch.ones(_TRIAL_ROWS, _TRIAL_WIDTH, dtype=dtype)
    b = torch.ones(_TRIAL_WIDTH, _TRIAL_WIDTH, dtype=dtype)
    best = float("inf")
    for _ in range(_TRIAL_REPEATS):
        start = monotonic()
        torch.nn.functional.linear(a, b)
        best = min(best, monotonic() - start)
    return best


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as one level, such as {"fit.lr": 0.001}."""
    out: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            out |= _flat(value, f"{prefix}{name}.")
        else:
            out[f"{prefix}{name}"] = value
    return out
