"""Drafts for Qwen3.5 and its MoE as they are configured in public, on hybrid targets.

The targets have as many layers as the published ones and attention in every fourth, so that the
draft reads rows of recurrent and other layers; widths are small and weights random.
"""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pyllama_spec.drafters import DFlash, Drafter, Eagle3
from tests.convert.test_configs import SUPPORTED
from tests.convert.test_dflash_configs import CASES, HEAD, convert_small
from tests.convert.test_engine import random_head
from tests.convert.tools import Head, convert, gguf_keys, write_head
from tests.dflash_tools import cold_block
from tests.eagle3_tools import cold_proposal, target_context
from tests.models import model_path, write_eagle3
from tests.oracles import (
    GREEDY,
    LoopRun,
    check_same_rows,
    check_teacher_forced,
    prompt_tokens,
    run_once,
    sampled,
    tiny,
    tiny_context,
)

pytestmark = pytest.mark.slow
BLOCKS = {name: case for name, case in CASES.items() if case.arch in ("qwen35", "qwen35moe")}
CHAINS = {"SpecForge qwen3.5-4b": "qwen35", "SpecForge qwen3.5-35b-a3b": "qwen35moe"}
PROMPT = prompt_tokens(9, seed=5) * 2
TEXT = prompt_tokens(70, seed=3)
N_TOKENS = 17
SAMPLINGS = {"greedy": GREEDY, "seeded": sampled(7)}
Options = tuple[tuple[str, Any], ...]


def hybrid(arch: str, n_layer: int, n_embd: int = 64) -> Options:
    """The options of a target, for tiny() and model_path(); both are to hash them."""
    return (
        ("kind", arch), ("n_layer", n_layer), ("n_embd", n_embd), ("attention_interval", 4),
        ("output_scale", 3.0),
    )  # fmt: skip


@cache
def plain(options: Options, sampling: str) -> LoopRun:
    """The text without a draft, checked against single-token decodes."""
    with tiny_context(tiny(**dict(options))) as context:
        run = run_once(context, None, PROMPT, N_TOKENS, SAMPLINGS[sampling], keep_rows=True)
        check_teacher_forced(context.model, run)
    return run


def check_text(options: Options, drafter: Drafter) -> None:
    """Greedy and seeded, the text and the rows that it is taken from are those without a draft."""
    with target_context(tiny(**dict(options)), drafter, n_rs_seq=drafter.max_draft + 1) as context:
        for name, params in SAMPLINGS.items():
            run = run_once(context, drafter, PROMPT, N_TOKENS, params, keep_rows=True)
            assert run.stats.reason_off is None
            assert run.stats.drafted > 0
            check_same_rows(run, plain(options, name))
        # One at the end of each prompt, and none in rounds.
        assert context.memory.n_host_copies == len(SAMPLINGS)


def block_target(name: str) -> Options:
    """The target of a block draft; DFlash2's scores of 16 candidates need a wider row."""
    case = BLOCKS[name]
    return hybrid(case.arch, case.n_layer, 288 if case.draft == "DFlash2" else 64)


@pytest.mark.parametrize("name", BLOCKS)
def test_a_published_block_draft(tmp_path: Path, name: str) -> None:
    case, options = BLOCKS[name], block_target(name)
    report = convert_small(tmp_path / "draft", case, model_path(**dict(options)))
    assert (report.draft, report.target_layers) == (case.draft, case.inputs)
    # A text has one position per token, so all pairs turn by the first of the four.
    assert gguf_keys(report.path)["dflash.rope.dimension_sections"] == [HEAD // 2, 0, 0, 0]
    with DFlash(report.path, 7) as drafter:
        check_text(options, drafter)


def with_sections(path: Path, sections: tuple[int, int, int, int]) -> Path:
    """A copy of a draft whose sections are others."""
    data = bytearray(path.read_bytes())
    key = b"dflash.rope.dimension_sections"
    assert data.count(key) == 1
    # Behind the key: its type, the type of the elements and their number.
    at = data.index(key) + len(key) + 4 + 4 + 8
    assert struct.unpack_from("<4i", data, at) == (HEAD // 2, 0, 0, 0)
    struct.pack_into("<4i", data, at, *sections)
    out = path.with_name("other.gguf")
    out.write_bytes(data)
    return out


@pytest.mark.parametrize("name", ["z-lab/Qwen3.5-35B-A3B-DFlash", "SpecForge qwen3.5-4b-dspark"])
def test_sections_turn_as_one_position_does(tmp_path: Path, name: str) -> None:
    """Blocks equal those of plain RoPE; only the fourth position, 0 in a text, would differ."""
    options = block_target(name)
    path = convert_small(tmp_path / "draft", BLOCKS[name], model_path(**dict(options))).path
    model = tiny(**dict(options))

    def block(file: Path) -> Any:
        with DFlash(file, 7) as drafter:
            proposal, guessed = cold_block(model, drafter, TEXT, 7)
        return proposal, guessed.ids, guessed.probabilities

    expected = block(path)
    n = HEAD // 2
    for same in ((0, 0, 0, 0), (n // 2, n // 4, n // 4, 0)):
        assert block(with_sections(path, same)) == expected, same
    assert block(with_sections(path, (1, 0, 0, n - 1))) != expected


def chain_head(name: str) -> Head:
    """A head of the published options, with small sizes."""
    case = SUPPORTED[name]
    config = case.config
    n_head_kv = 2
    head = random_head(
        target_layers=case.layers, n_head=config["num_attention_heads"] * n_head_kv
        // config["num_key_value_heads"], n_head_kv=n_head_kv, head_dim=16, n_draft_vocab=96,
        rope_freq_base=float(config["rope_theta"]), norm_eps=config["rms_norm_eps"],
    )  # fmt: skip
    sizes = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
             "vocab_size", "draft_vocab_size", "head_dim")  # fmt: skip
    head.config = config | {key: head.config[key] for key in sizes}
    return head


@pytest.mark.parametrize("name", CHAINS)
def test_a_published_chain_draft(tmp_path: Path, name: str) -> None:
    """EAGLE-3 of SpecForge: its own RoPE has one position, whatever the target's has."""
    options = hybrid(CHAINS[name], SUPPORTED[name].target[0])
    head, path = chain_head(name), model_path(**dict(options))
    # This layout names no layers: they follow from how many the target has.
    folder = write_head(tmp_path / "draft", "safeailab", head, "F32")
    report = convert(folder, tmp_path / "out.gguf", target=path)
    assert report.target_layers == SUPPORTED[name].layers
    keys = gguf_keys(report.path)
    assert keys["eagle3.rope.freq_base"] == pytest.approx(1e7)
    assert "eagle3.rope.dimension_sections" not in keys
    with Eagle3(report.path, 6) as drafter:
        check_text(options, drafter)
        proposed = cold_proposal(tiny(**dict(options)), drafter, TEXT)
    # Number by number those of the file that the tests' own builder writes of the same head.
    built = write_eagle3(tmp_path / "built.gguf", head.cfg, head.gguf)
    with Eagle3(built, 6) as drafter:
        assert cold_proposal(tiny(**dict(options)), drafter, TEXT) == proposed
    shifted = [k + 1 for k in head.cfg.target_layers]
    head.config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": shifted}
    write_head(folder, "safeailab", head, "F32")
    other = convert(folder, tmp_path / "shifted.gguf", target=path).path
    with Eagle3(other, 6) as drafter:
        assert cold_proposal(tiny(**dict(options)), drafter, TEXT) != proposed
