"""The module of an MTP head equals the engine's head, in every supported family."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pyllama_spec.engine import Model, ModelInfo
from pyllama_spec.errors import UnsupportedError
from pyllama_spec.train import (
    MtpTrainConfig,
    train_mtp,
)
from pyllama_spec.train.kinds.mtp import MtpHead, open_head
from pyllama_spec.train.kinds.mtp_facts import FAMILIES, REFUSED, read_shape
from pyllama_spec.train.run.chains import run_chains
from pyllama_spec.train.run.objective import draft_losses
from pyllama_spec.train.run.texts import Texts
from tests.models import model_path
from tests.models import mtp as heads
from tests.models.build import ARCHITECTURES, WITH_HEADS
from tests.models.config import TinyConfig
from tests.models.sketch import Sketch
from tests.parity.mtp_reference import load
from tests.train.chains import logits_of_steps, random_texts

# On a busy machine several threads wait for each other longer than such products take.
torch.set_num_threads(1)
OPTIONS = {"n_heads": 1, "output_scale": 1.0}


def opened(path: Path) -> MtpHead:
    """The head of a file as a module, with all ids of the vocabulary."""
    with Model(path) as model:
        file = open_head(path, model.info)
    n_vocab = file.shape.n_vocab
    ids = np.arange(n_vocab, dtype=np.int64)
    output = file.table("nextn.shared_head_head", file.floats("output.weight"))
    head = MtpHead(file.shape, file.floats("token_embd.weight"), ids, file.fixed())
    head.load_tensors({**file.trained(), "output.weight": output})
    return head


def texts_for(head: MtpHead, lengths: list[int]) -> Texts:
    """Random texts of which all is learned, with distributions at random."""
    n, rng = sum(lengths), np.random.default_rng(6)
    return replace(
        random_texts(lengths, head.shape.n_embd),
        learned=torch.ones(n, dtype=torch.bool),
        target_ids=torch.from_numpy(rng.integers(0, 256, (n, 4))),
        target_p=torch.full((n, 4), 0.25),
    )


@pytest.mark.parametrize("arch", FAMILIES)
def test_chains_are_the_steps_of_the_reference(arch: str) -> None:
    """Chains of 8 from every place equal a head that makes that chain alone."""
    check_chains(model_path(arch, **OPTIONS))


class _Wide(TinyConfig):
    """Heads of 32 numbers, four of which are more than the width of 64, as in Qwen3.5-4B."""

    @property
    def head_dim(self) -> int:
        return 32


class _WideSketch(Sketch):
    def matrix(self, name: str, *shape: int, gain: float = 1.0) -> None:
        """Queries as wide as all heads."""
        n = self.cfg.n_head * self.cfg.head_dim
        if name.endswith("attn_q.weight"):
            shape = (shape[0] // self.cfg.n_embd * n, shape[1])
        elif name.endswith("attn_output.weight"):
            shape = (shape[0], n)
        super().matrix(name, *shape, gain=gain)


def sketch(arch: str, empty: Sketch | None = None) -> Sketch:
    """A target with one head, to be changed."""
    m = empty or Sketch(TinyConfig(arch, n_heads=1))
    {**ARCHITECTURES, **WITH_HEADS}[arch](m)
    heads.add_heads(m)
    return m


@pytest.mark.parametrize("arch", ["qwen35", "qwen35moe"])
def test_heads_that_do_not_divide_the_width(arch: str, tmp_path: Path) -> None:
    m = sketch(arch, _WideSketch(_Wide(arch, n_heads=1, output_scale=1.0)))
    check_chains(m.write(tmp_path / "wide.gguf"))


def check_chains(path: Path) -> None:
    """That the module gives what the reference does."""
    head, n_steps = opened(path), 8
    texts = texts_for(head, [4, 11])
    got = logits_of_steps(head, texts, run_chains(head, texts, n_steps))
    tokens, rows = texts.tokens.tolist(), texts.features.double().numpy()
    reference, n_compared, first = load(path), 0, 0
    for length in texts.lengths:
        for start in range(length - 2):
            reference.memory.clear()
            for i in range(start + 2):
                before = rows[first + i - 1] if i else np.zeros(rows.shape[1])
                logits, row = reference.step(tokens[first + i], before, i)
            for depth in range(min(n_steps, length - 2 - start)):
                if depth:
                    token = tokens[first + start + 1 + depth]
                    logits, row = reference.step(token, row, start + 1 + depth)
                np.testing.assert_allclose(got[first + start, depth], logits, rtol=0, atol=1e-4)
                n_compared += 1
        first += length
    assert n_compared == len(got)
    assert max(depth for _, depth in got) == n_steps - 1


def _loss(head: MtpHead, texts: Texts, n_steps: int) -> torch.Tensor:
    return draft_losses(
        head, run_chains(head, texts, n_steps), texts, n_steps, torch.float32, 1.0,
        torch.Generator().manual_seed(1),
    ).total  # fmt: skip


@pytest.mark.parametrize("arch", FAMILIES)
def test_gradients_flow_through_all_steps(arch: str) -> None:
    """The loss of chains of 8 changes along a direction as its gradient predicts.

    The direction is in the joining matrix, which every step uses with the row of the previous step:
    with the rows detached the gradient would differ. A larger step along it selects other experts.
    """
    head, n_steps = opened(model_path(arch, **OPTIONS)), 8
    texts = texts_for(head, [12])
    weight = head.weight(head.shape.tensor("nextn.eh_proj"))
    loss = _loss(head, texts, n_steps)
    loss.backward()
    assert weight.grad is not None
    along = weight.grad / weight.grad.norm()
    said = float((weight.grad * along).sum())
    found, size = [], 3e-5
    for sign in (1.0, -1.0):
        with torch.no_grad():
            weight += sign * size * along
            found.append(_loss(head, texts, n_steps).item())
            weight -= sign * size * along
    assert (found[0] - found[1]) / (2 * size) == pytest.approx(said, rel=0.02)
    without_grad = [name for name, one in head.named_parameters() if one.grad is None]
    assert without_grad == ["weights.output/weight"]
    assert not any(name.startswith("fixed") for name in head.state_dict())


# ---- what cannot be trained


def test_all_heads_that_draft_are_trained_or_refused() -> None:
    assert {*FAMILIES, *REFUSED} == {*heads.HEADS}
    assert not {*FAMILIES}.intersection(REFUSED)


@pytest.mark.parametrize(
    ("arch", "n_heads", "words"),
    [
        ("llama", 0, r"\(llama\) has no MTP head to train"),
        ("hy_v3", 3, "has 3 MTP heads, and training takes one alone"),
        *((arch, 1, f"cannot be trained: architecture '{arch}'") for arch in REFUSED),
    ],
)
def test_a_head_that_cannot_be_trained_is_refused_before_anything(
    tmp_path: Path, arch: str, n_heads: int, words: str
) -> None:
    target = model_path(arch, n_heads=n_heads)
    with pytest.raises(UnsupportedError, match=words) as caught:
        train_mtp(MtpTrainConfig(target, tmp_path / "head.gguf"))
    assert "\n" not in str(caught.value)
    assert "`train eagle3`" in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("rope.scaling.factor", 4.0), "compute what rope.scaling.factor says"),
        (("attention.sliding_window", 16), "compute what attention.sliding_window says"),
        (("expert_group_count", 2), "compute what expert_group_count says"),
        ("ffn_gate_up_exps.weight", r"does not know its tensor blk\.4\.ffn_gate_up_exps"),
    ],
)
def test_what_training_does_not_compute_is_refused_by_name(
    tmp_path: Path, change: tuple[str, float] | str, words: str
) -> None:
    m = sketch("glm4moe")
    if isinstance(change, str):
        m.matrix(f"blk.4.{change}", 8, 8)
    else:
        m.key(*change)
    path = m.write(tmp_path / "odd.gguf")
    with pytest.raises(UnsupportedError, match=words):
        read_shape(path, info_of(model_path("glm4moe", n_heads=1)))


def info_of(path: Path) -> ModelInfo:
    """The sizes of a file."""
    with Model(path) as model:
        return model.info
