"""The engine loads converted files, and their drafts are the head's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader

from pyllama_spec import Llama
from pyllama_spec.drafters import Eagle3
from pyllama_spec.engine import Model
from pyllama_spec.errors import PyllamaSpecError
from tests.convert.test_target import byte_level_json, write_folder
from tests.convert.tools import (
    Head,
    Json,
    Tensors,
    convert,
    flat_config,
    to_checkpoint,
    write_head,
)
from tests.eagle3_tools import Proposal, cold_proposal
from tests.models import (
    Eagle3Config,
    RopeScaling,
    eagle3_tensors,
    model_path,
    perm_continuation,
    perm_next,
)
from tests.oracles import tiny

PROMPT = list(b"abcdefghijklmnop")


def perm_head(**options: Any) -> Head:
    """The head that knows what the PERM target will say, as a checkpoint."""
    path = model_path("perm_eagle3", **options)
    tensors: Tensors = {t.name: np.array(t.data) for t in GGUFReader(path).tensors}
    cfg = Eagle3Config(
        n_vocab=320, target_n_embd=320, target_layers=options.get("target_layers", (1,)),
        n_embd=320, n_head_kv=4, n_ff=320, n_draft_vocab=320 if options.get("reduced") else None,
        norm_output=options.get("norm_output", False),
    )  # fmt: skip
    return Head(cfg, to_checkpoint(cfg, tensors), flat_config(cfg), tensors)


def acceptance(draft: Path) -> tuple[int, int]:
    """Accepted and drafted tokens of 40 generated ones; the text is PERM's."""
    with Llama(
        model_path("perm"), draft=str(draft), n_draft=4, controller="fixed", n_ctx=256, n_threads=1
    ) as llama:
        generation = llama.generate_steps(PROMPT, max_tokens=40, temperature=0.0)
        with generation:
            for _ in generation:
                pass
    record = generation.record
    assert list(record.tokens) == perm_continuation(PROMPT[-1], 40, perm_next())
    return record.stats.accepted, record.stats.drafted


@pytest.mark.parametrize("kind", [None, "bf16", "f16", "q8_0"])
@pytest.mark.parametrize("layout", ["specforge", "speculators", "nvidia", "flat"])
def test_every_draft_is_accepted(tmp_path: Path, layout: str, kind: str | None) -> None:
    """PERM accepts every draft, so the head's numbers and its table are right."""
    head = perm_head(reduced=True, target_layers=(1, 2, 4))
    folder = write_head(tmp_path / "draft", layout, head, "F32")
    out = convert(folder, tmp_path / "out.gguf", target=model_path("perm"), kind=kind).path
    accepted, drafted = acceptance(out)
    assert accepted == drafted > 0


def test_rope_of_the_engine(tmp_path: Path) -> None:
    """A head that derives its position from RoPE drafts differently if the rows are reordered."""
    head = perm_head(read_token=True)
    folder = write_head(tmp_path / "draft", "specforge", head, "F32")
    out = convert(folder, tmp_path / "out.gguf", target=model_path("perm")).path
    accepted, drafted = acceptance(out)
    assert accepted == drafted > 0
    head.tensors["layers.0.self_attn.k_proj.weight"] = head.gguf["blk.0.attn_k.weight"]
    write_head(folder, "specforge", head, "F32")
    out = convert(folder, tmp_path / "out.gguf", target=model_path("perm")).path
    assert acceptance(out)[0] == 0


def test_a_folder_as_target(tmp_path: Path) -> None:
    """The vocabulary from tokenizer.json equals that of the target's GGUF, token by token."""
    n_layer = tiny("perm").info.n_layer
    target = write_folder(
        tmp_path / "target", byte_level_json(), hidden_size=320, num_hidden_layers=n_layer
    )
    folder = write_head(tmp_path / "draft", "specforge", perm_head(), "F32")
    out = convert(folder, tmp_path / "out.gguf", target=target).path
    accepted, drafted = acceptance(out)
    assert accepted == drafted > 0
    other = byte_level_json()
    vocab = other["model"]["vocab"]
    vocab["\u0120w0"], vocab["\u0120w1"] = vocab["\u0120w1"], vocab["\u0120w0"]
    write_folder(target, other, hidden_size=320, num_hidden_layers=n_layer)
    out = convert(folder, tmp_path / "other.gguf", target=target).path
    with (
        Model(out) as draft,
        Model(model_path("perm")) as model,
        pytest.raises(PyllamaSpecError, match="another vocabulary: its token"),
    ):
        draft.check_draft_of(model)


ROPE: dict[str, Json] = {
    "linear": {"factor": 8.0},
    "yarn": {"factor": 8.0, "original_max_position_embeddings": 256},
    "llama3": {
        "factor": 8.0, "original_max_position_embeddings": 256, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
    "longrope": {"original_max_position_embeddings": 256, "attention_factor": 1.25},
}  # fmt: skip
OPTIONS: list[dict[str, Any]] = [
    {},
    {"norm_before_residual": True, "norm_output": True, "attn_bias": True, "fc_bias": True},
    {"norm_before_fc": True, "qk_norm": True, "n_layer": 2},
    {"fc_norm": True, "target_layers": (0, 2, 3, 4), "n_draft_vocab": 200, "sorted_d2t": False},
    {"output_gate": True, "qk_norm": True, "head_dim": 24, "n_head_kv": 1},
    *({"rope": RopeScaling(kind)} for kind in ("linear", "yarn", "llama3")),
    {"rope": RopeScaling("longrope", attn_factor=1.25)},
]


def random_head(**options: Any) -> Head:
    """A head of tests/models/eagle3.py as a checkpoint, with its RoPE scaling in config.json."""
    cfg = Eagle3Config(**options)
    tensors = eagle3_tensors(cfg)
    head = Head(cfg, to_checkpoint(cfg, tensors), flat_config(cfg), tensors)
    head.config["max_position_embeddings"] = cfg.n_ctx_train
    if cfg.rope.kind != "none":
        head.config["rope_scaling"] = {"rope_type": cfg.rope.kind, **ROPE[cfg.rope.kind]}
    for part in ("long", "short"):
        factors = head.tensors.pop(f"rope_factors_{part}.weight", None)
        if factors is not None:
            head.config["rope_scaling"][f"{part}_factor"] = [float(x) for x in factors]
    head.tensors.pop("rope_freqs.weight", None)
    return head


def drafts(path: Path) -> Proposal:
    """A head's drafts after a text, with its probabilities."""
    model = tiny("llama")
    with Eagle3(path, 8) as drafter:
        return cold_proposal(model, drafter, [*PROMPT, *range(40, 100)])


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_drafts_are_those_of_the_head(tmp_path: Path, options: dict[str, Any]) -> None:
    """The drafts equal, number by number, those of a file from the tests' own builder."""
    target = model_path("llama")
    head = random_head(**options)
    folder = write_head(tmp_path / "draft", "flat", head, "F32")
    report = convert(folder, tmp_path / "out.gguf", target=target)
    expected = drafts(model_path("eagle3", **options))
    assert drafts(report.path) == expected
    # One layer off is another draft.
    shifted = [(k + 1) % 5 for k in head.cfg.target_layers]
    head.config["eagle_aux_hidden_state_layer_ids"] = shifted
    write_head(folder, "flat", head, "F32")
    assert drafts(convert(folder, tmp_path / "out.gguf", target=target).path) != expected
