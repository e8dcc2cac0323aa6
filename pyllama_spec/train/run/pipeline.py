"""The stages of a training run. Imports PyTorch; train/api.py reports if it is missing."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, Generic

import torch

from pyllama_spec.engine.system import bounded_n_threads
from pyllama_spec.train.config import N_TOP, RunConfig
from pyllama_spec.train.corpus.build import build_corpus, corpus_identity
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
from pyllama_spec.train.errors import TrainError
from pyllama_spec.train.files import locked, read_json, write_json
from pyllama_spec.train.progress import Reporter
from pyllama_spec.train.run.export import write_draft
from pyllama_spec.train.run.fit import Checkpoints, Fit, FitState
from pyllama_spec.train.run.kind import H, Inputs, Kind
from pyllama_spec.train.run.objective import Acceptance, no_gain
from pyllama_spec.train.run.target_weights import TargetWeights, read_weights

# Tokens of all text per answer token, prompts included, and a token's bytes beside its features.
_TEXT_SHARE, _TOKEN_BYTES = 1.3, 5
_MAX_HELD_OUT = 16_384  # the most tokens to measure on
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
        with locked(self._work / ".lock"):
            weights = read_weights(self._config.target, self._model.info)
            corpus, source = self._text(weights.sha256)
            return self._fit(*self._head(weights, corpus, source))

    def _text(self, target_sha256: str) -> tuple[Corpus, FeatureSource]:
        """Builds the corpus and its features."""
        config, start = self._config, perf_counter()
        model, layers = self._model, self._layers
        identity = corpus_identity(config.corpus, target_sha256)
        store = FeatureStore(
            feature_folder(self._work, layers),
            {**identity, "target_layers": list(layers), "n_top": N_TOP},
        )

        def report(fraction: float, note: str) -> None:
            self._reporter.progress("writing text", min(fraction, 0.999), note)

        texts = CorpusStore(self._work / "corpus", identity)
        n_known = texts.n_answer
        self._reporter.line(self._plan(n_known))
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

    def _plan(self, n_known: int) -> str:
        """Reports the planned work and the disk space that it needs; raises if there is less."""
        n_wanted = self._config.corpus.n_tokens
        if n_known >= n_wanted:
            return f"text: {n_known} answer tokens of an earlier run"
        n_tokens = (n_wanted - n_known) * _TEXT_SHARE
        need = n_tokens * (token_bytes(self._width, N_TOP) + _TOKEN_BYTES)
        free = shutil.disk_usage(self._work).free
        sizes = f"with features about {need / 1e6:.0f} MB, {free / 1e9:.1f} GB are free"
        if need > free:
            raise TrainError(
                f"{self._work}: {sizes}; give fewer --tokens, or another --work folder"
            )
        known = f", {n_known} of an earlier run" if n_known else ""
        return f"text: {n_wanted} answer tokens are to be written{known}; {sizes}"

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
        self._reporter.line(f"features: {store.n_bytes / 1e9:.2f} GB on disk")
        if store.n_bytes > n_before:
            self._seconds["features"] = perf_counter() - start
        return FeatureSource(corpus, store)

    def _head(
        self, weights: TargetWeights, corpus: Corpus, source: FeatureSource
    ) -> tuple[H, Inputs]:
        """Creates the head on its device with its initial weights, and the text to learn from."""
        config, init = self._config, self._init
        train, held_out = split(corpus, config.fit.held_out, _MAX_HELD_OUT)
        if not held_out:
            self._notes.append("no answer at temperature 0 is held out: nothing was measured")
        vocab = self._kind.vocab(corpus.sequences, init)
        self._reporter.line(
            f"vocabulary of the loss: {len(vocab.d2t)} of {len(vocab.t2d)} tokens, "
            f"{min(100 * vocab.coverage, 99.99):.2f}% of the answers' tokens"
        )
        start = Inputs(weights, self._layers, corpus, source.get, vocab, train, held_out)
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
            init=self._init, facts=facts,
        )  # fmt: skip
        return TrainReport(
            config.out, n_bytes, state.untrained, trained, len(text.corpus.sequences),
            text.corpus.n_answer, state.n_tokens, text.vocab.coverage, self._seconds,
            tuple(self._notes), why_not,
        )  # fmt: skip


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
