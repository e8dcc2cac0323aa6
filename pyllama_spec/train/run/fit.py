"""Fits a head to its target's distributions, with checkpoints and measurements."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO, Generic

import numpy as np
import torch

from pyllama_spec.train.config import FitSettings
from pyllama_spec.train.corpus.selection import batches_from, count_batches
from pyllama_spec.train.corpus.store import check_same
from pyllama_spec.train.errors import CheckpointError, DivergedError
from pyllama_spec.train.files import write_atomic
from pyllama_spec.train.progress import Reporter, interruptions
from pyllama_spec.train.run.kind import H, Inputs, Kind
from pyllama_spec.train.run.objective import (
    Acceptance,
    acceptance_of,
    accepted_in_rounds,
    count_accepted,
)
from pyllama_spec.train.run.texts import load


class Checkpoints:
    """The states of a fit, "last" to continue from and "best" to export, in the files of a folder.

    Without a folder the best one is kept in memory. `identity` is what a fit has to have in common
    with the one that wrote the files, unless that is finished: then another one replaces it.
    """

    def __init__(self, folder: Path | None, identity: dict[str, Any]) -> None:
        self._folder, self._identity = folder, identity
        self._best: dict[str, Any] | None = None

    def save(self, name: str, state: dict[str, Any]) -> None:
        """Keeps a state."""
        if self._folder is None:
            self._best = copy.deepcopy(state) if name == "best" else self._best
            return

        def write(file: BinaryIO) -> None:
            try:
                torch.save({"identity": self._identity, "state": state}, file)
            except RuntimeError as error:  # torch's own for a full disk
                raise OSError(str(error)) from None

        write_atomic(self._folder / f"{name}.pt", write)

    def load(self, name: str) -> dict[str, Any] | None:
        """Loads a state; None if there is none."""
        if self._folder is None:
            return self._best if name == "best" else None
        path = self._folder / f"{name}.pt"
        if not path.exists():
            return None
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
            identity, state = content["identity"], content["state"]
        except Exception as error:  # noqa: BLE001 - whatever a damaged file makes of unpickling
            raise CheckpointError(
                f"{path} is damaged ({type(error).__name__}); remove {self._folder} to "
                "begin the training again with the same text"
            ) from None
        if identity != self._identity and state.get("is_finished"):
            return None
        check_same(identity, self._identity, path, ", or remove it to train from the beginning")
        checkpoint: dict[str, Any] = state
        return checkpoint

    @property
    def remedy(self) -> str:
        """The remedy for a diverged fit: its last state and how to restart, as "... with"."""
        if self._folder is None:
            return "The draft is as it was; begin again with"
        return f"Remove {self._folder}, and begin again with"


# Sequences of one measurement's batch; without gradients they take little memory.
_MEASURE_SEQUENCES = 8
_CHECKPOINT_S = 120.0  # between checkpoints
# The share of the peak rate at the end.
_FLOOR = 0.01
_BETAS = (0.9, 0.95)
_WEIGHT_DECAY = 0.01


@dataclass(slots=True)
class FitState:
    """The state of a fit."""

    step: int = 0  # optimiser steps done
    n_tokens: int = 0  # answer tokens seen
    # the measurements, as curves.json has them
    course: list[dict[str, Any]] = field(default_factory=list)
    best: float = 0.0  # tokens per round of the best measurement
    untrained: Acceptance | None = None  # the head's acceptance before the first step
    # since the last measurement, of each step by depth
    losses: list[list[float]] = field(default_factory=list)


class Fit(Generic[H]):
    """One fit of a head, which is on its device with its initial weights."""

    def __init__(
        self,
        kind: Kind[H, Any],
        head: H,
        text: Inputs,
        checkpoints: Checkpoints,
        *,
        bf16: bool,
        reporter: Reporter,
    ) -> None:
        self._kind, self._head, self._text = kind, head, text
        self._config: FitSettings = kind.config.fit
        config = self._config
        self._checkpoints = checkpoints
        self._dtype, self._reporter = torch.bfloat16 if bf16 else torch.float32, reporter
        self._device = head.embedding.device.type
        self._lengths = [len(text.corpus.sequences[i].tokens) for i in text.train]
        self.n_steps = count_batches(self._lengths, config.batch_tokens, config.seed, config.epochs)
        trained = [p for p in head.parameters() if p.requires_grad]
        matrices = [p for p in trained if p.ndim > 1]
        vectors = [p for p in trained if p.ndim == 1]
        self._optimizer = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": _WEIGHT_DECAY},
                {"params": vectors, "weight_decay": 0.0},
            ],
            lr=config.lr,
            betas=_BETAS,
            # In one pass over the weights: without it each of its five steps makes arrays as large
            # as the largest matrix, and the system's zeroing of them takes longer than the sums.
            fused=True,
        )
        self.state = FitState()
        self._resume()

    def _resume(self) -> None:
        saved = self._checkpoints.load("last")
        if saved is None:
            return
        self._head.load_state_dict(saved["head"])
        self._optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["rng"])
        self.state = FitState(**saved["state"])
        self.state.untrained = Acceptance(**saved["state"]["untrained"])

    def run(self) -> FitState:
        """Fits until the end."""
        state, config = self.state, self._config
        if state.untrained is None:
            state.untrained = self.measure()
            self._save("last")
        batches = batches_from(
            self._lengths, config.batch_tokens, config.seed, config.epochs, state.step
        )
        saved_at = monotonic()
        with interruptions() as interrupted:
            for batch in batches:
                self._learn(batch)
                if is_measured(state.step, self.n_steps, config.n_evals):
                    self._note(self.measure())
                is_due = monotonic() - saved_at >= _CHECKPOINT_S
                if is_due or state.step == self.n_steps or interrupted.is_set():
                    self._save("last")
                    saved_at = monotonic()
                if interrupted.is_set():
                    raise KeyboardInterrupt
        return state

    def _learn(self, batch: list[int]) -> None:
        """Makes one optimiser step."""
        config, state = self._config, self.state
        rate = learning_rate(state.step, self.n_steps, config.lr, config.warmup)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        text = self._text
        indices = [text.train[i] for i in batch]
        texts = load(indices, text.corpus, text.source, text.vocab, self._device)
        generator = self._generator()
        with self._autocast():
            losses = self._kind.losses(self._head, texts, self._dtype, generator)
        self._optimizer.zero_grad(set_to_none=True)
        losses.total.backward()
        norm = torch.nn.utils.clip_grad_norm_(self._head.parameters(), config.clip)
        total = float(losses.total.detach())
        if not (math.isfinite(total) and math.isfinite(float(norm))):
            raise DivergedError(
                f"the loss is {total} at step {state.step} (its gradient {float(norm)}): training "
                f"has diverged. {self._checkpoints.remedy} a smaller --lr"
            )
        self._optimizer.step()
        state.step += 1
        state.n_tokens += sum(text.corpus.sequences[i].n_answer for i in indices)
        state.losses.append(losses.by_depth)
        note = f"step {state.step}/{self.n_steps}, loss {total:.3f}"
        self._reporter.progress("training", state.step / self.n_steps, note)

    def _generator(self) -> torch.Generator:
        """The random generator of this step: independent of interruptions."""
        seed = int(
            np.random.SeedSequence([self._config.seed, self.state.step]).generate_state(1)[0]
        )
        return torch.Generator().manual_seed(seed)

    def measure(self, held: Sequence[int] | None = None) -> Acceptance:
        """Measures the acceptance on some sequences; None means the held-out ones."""
        histogram, text = [0] * (self._kind.n_steps + 1), self._text
        held = text.held_out if held is None else held
        for at in range(0, len(held), _MEASURE_SEQUENCES):
            part = held[at : at + _MEASURE_SEQUENCES]
            texts = load(part, text.corpus, text.source, text.vocab, self._device)
            with self._autocast(), torch.no_grad():
                steps = self._kind.steps(self._head, texts)
                n_accepted = count_accepted(self._head, steps, texts)
            for n in accepted_in_rounds(texts.starts.tolist(), n_accepted.tolist()):
                histogram[n] += 1
        return acceptance_of(histogram)

    def _autocast(self) -> Any:
        return torch.autocast(self._device, torch.bfloat16, enabled=self._dtype != torch.float32)

    def _note(self, acceptance: Acceptance) -> None:
        state = self.state
        rate = learning_rate(state.step, self.n_steps, self._config.lr, self._config.warmup)
        loss = _mean(state.losses)
        state.course.append({
            "step": state.step, "n_tokens": state.n_tokens, "lr": rate, "loss": loss,
            "acceptance": acceptance.by_depth,
            "tokens_per_round": acceptance.tokens_per_round,
        })  # fmt: skip
        state.losses = []
        by_depth = " ".join(f"{share:.2f}" for share in acceptance.by_depth)
        self._reporter.line(
            f"step {state.step} of {self.n_steps}: loss {loss[0]:.3f}, accepted {by_depth}, "
            f"{acceptance}"
        )
        # Without held-out text the last weights are the best that is known.
        if acceptance.tokens_per_round >= state.best or acceptance.n_rounds == 0:
            state.best = acceptance.tokens_per_round
            self._save("best")

    def _save(self, name: str) -> None:
        content: dict[str, Any] = {"head": self._head.state_dict()}
        if name == "last":
            content |= {
                "optimizer": self._optimizer.state_dict(), "rng": torch.get_rng_state(),
                "state": asdict(self.state), "is_finished": self.state.step == self.n_steps,
            }  # fmt: skip
        self._checkpoints.save(name, content)

    def load_best(self) -> None:
        """Loads the weights of the best measurement into the head."""
        saved = self._checkpoints.load("best")
        if saved is not None:
            self._head.load_state_dict(saved["head"])


def _mean(by_depth: list[list[float]]) -> list[float]:
    mean: list[float] = np.mean(by_depth, axis=0).tolist()
    return mean


def learning_rate(step: int, n_steps: int, peak: float, warmup: float) -> float:
    """The learning rate of a step: linear warm-up, then half a cosine (SGDR, arXiv 1608.03983)."""
    n_warm = max(round(warmup * n_steps), 1)
    if step < n_warm:
        return peak * (step + 1) / n_warm
    done = (step - n_warm) / max(n_steps - n_warm, 1)
    return peak * (_FLOOR + (1 - _FLOOR) * 0.5 * (1 + math.cos(math.pi * done)))


def is_measured(step: int, n_steps: int, n_evals: int) -> bool:
    """Whether to measure after `step` steps: n_evals times, evenly, and at the end."""
    if step == 0:
        return False
    return step == n_steps or (step * n_evals) // n_steps > ((step - 1) * n_evals) // n_steps
