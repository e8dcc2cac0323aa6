"""The acceptance that a draft loses by choosing among a part of the vocabulary, on real texts.

    python -m benchmarks.output_acceptance -m MODEL.gguf --text FILE [FILE ...]
        [--slots 65536 32768 16384 8192] [--prompt 200] [-n 600] [--engine]

The ids are those of MODEL, of which only the vocabulary is read. The first tokens of each text are
the prompt, the rest is the target's answer. The simulated draft knows the answer: its tokens are
right up to the first one without a slot. So only the part of the vocabulary loses acceptance. The
last column has the acceptance published for three tokens of a head of Qwen3.5-4B: 0.83, 0.65, 0.49.

With --engine the MTP head of a tiny model with as many ids drafts too. Its text is all distinct ids
of the answer in order, twice. With the whole matrix every drafted token is accepted.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.mtp_output import Shape
from pyllama_spec.drafters import Mtp
from pyllama_spec.drafters.output_part import DraftIds, OutputRows
from pyllama_spec.engine import Context, Model
from pyllama_spec.speculative import SequenceState, SpeculativeLoop
from tests.models import TinyConfig, mtp, recurrent
from tests.mtp_tools import mtp_context
from tests.oracles import generate

WIDTH, N_DRAFT = 256, (3, 8, 15)
_CURVE = (0.83, 0.65, 0.49)
_ADDING = ("attn_output.weight", "ffn_down.weight", "ssm_out.weight")


def write_circle(path: Path, ids: Sequence[int], n_vocab: int) -> None:
    """Writes a model that repeats these ids in order, with a head that predicts them.

    The embedding of the k-th id is a point rotated k times by a fixed angle in each plane, so that
    one rotation maps each to the next. All other ids have random embeddings.
    """
    rng, n = np.random.default_rng(0), len(ids)
    steps = rng.integers(1, n // 2, WIDTH // 2)
    angles = 2.0 * np.pi * np.outer(np.arange(n), steps) / n
    points = np.concatenate((np.cos(angles), np.sin(angles)), axis=1)  # [n, WIDTH]
    table = rng.standard_normal((n_vocab, WIDTH)).astype(np.float32) / np.float32(np.sqrt(2.0))
    output = table.copy()
    table[list(ids)], output[list(ids)] = points, np.roll(points, 1, axis=0)
    cos, sin = np.diag(np.cos(2.0 * np.pi * steps / n)), np.diag(np.sin(2.0 * np.pi * steps / n))
    m = Shape(TinyConfig("qwen35", 0, 2, n_vocab, n_embd=WIDTH, n_heads=1))
    recurrent.qwen35(m)
    mtp.add_heads(m)
    for name, array in m.tensors.items():
        if name.endswith(_ADDING):
            array *= 0.0
    m.tensors["output_norm.weight"][:] = m.tensors["blk.2.nextn.hnorm.weight"][:] = 1.0
    m.tensors["blk.2.nextn.shared_head_norm.weight"][:] = 1.0
    turn = np.block([[cos, -sin], [sin, cos]])
    m.tensors["blk.2.nextn.eh_proj.weight"][:] = np.concatenate((0.0 * turn, turn), axis=1)
    m.put("token_embd.weight", table)
    m.put("output.weight", output / np.float32(4.0))
    m.write(path)


def accepted_of_circle(path: Path, ids: Sequence[int], n_output: int) -> tuple[int, int]:
    """Generates the ids twice; returns the head's accepted and drafted tokens."""
    drafter = Mtp(max_draft=3, n_output=n_output)
    with (
        Model(path, load_mtp=True) as model,
        mtp_context(model, drafter, n_ctx=2 * len(ids) + 64) as context,
    ):
        loop = SpeculativeLoop(context, drafter)
        run = generate(loop, SequenceState(), list(ids[:1]), 2 * len(ids) - 1)
        assert run.tokens == [*ids[1:], *ids][: len(run.tokens)], "the model does not say its ids"
        drafter.close()
    return run.stats.accepted, run.stats.drafted


def tokens_per_round(
    slots: DraftIds | None,
    prompt: Sequence[int],
    text: Sequence[int],
    right: npt.NDArray[np.int64],
) -> tuple[float, int]:
    """Simulates rounds; returns the tokens per round, and the number of tokens without a slot.

    Args:
        slots: the ids that can be drafted, None for all; the prompt and committed tokens get slots.
        prompt: the ids of the prompt.
        text: the ids of the target's text; the first is from the prompt's last row.
        right: how many drafted tokens the head gets right in each round, for at least as many
            rounds as needed.

    """
    if slots is not None:
        slots.see([*prompt, text[0]])
    at, n_rounds, n_without = 1, 0, 0
    while at < len(text):
        draft = text[at : at + int(right[n_rounds])]
        unknown = [i for i, id_ in enumerate(draft) if slots is not None and id_ not in slots]
        done = text[at : at + 1 + (unknown[0] if unknown else len(draft))]
        if slots is not None:
            n_without += sum(id_ not in slots for id_ in done)
            slots.see(done)
        at, n_rounds = at + len(done), n_rounds + 1
    return (len(text) - 1) / n_rounds, n_without


def replay(
    name: str, ids: Sequence[int], n_prompt: int, context: Context, target: Model, n_slots: int
) -> None:
    """Prints the figures of a text with n_slots; 0 for all ids."""
    prompt, text = ids[:n_prompt], ids[n_prompt:]
    drawn = np.random.default_rng(0).random(len(text))
    curve = np.array([sum(one < c for c in _CURVE) for one in drawn])
    figures, n_without, slots = [], 0, None
    for right in (*(np.full(len(text), n) for n in N_DRAFT), curve):
        if n_slots:
            matrix = context.draft_output(n_slots)
            rows = OutputRows(context.model.path, matrix.name, matrix.row_bytes)
            slots = DraftIds(context, target, rows, n_slots)
        rate, n_without = tokens_per_round(slots, prompt, text, right)
        figures.append(f"{rate:.2f}")
    print(
        f"{name}, {n_slots or 'all'} slots: {n_without} of {len(text) - 1} tokens without one; "
        f"tokens per round with drafts of {N_DRAFT} right tokens {', '.join(figures[:-1])}; as "
        f"published {figures[-1]}",
        flush=True,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a line for each text and number of slots."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("-m", "--model", required=True, help="model whose vocabulary is read")
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="UTF-8 files")
    parser.add_argument("--slots", type=int, nargs="+", default=[65536, 32768, 16384, 8192])
    parser.add_argument("--prompt", type=int, default=200, help="tokens of the prompt")
    parser.add_argument("-n", type=int, default=600, help="tokens after it")
    parser.add_argument("--engine", action="store_true", help="draft with a head too")
    args = parser.parse_args(argv)
    with Model(args.model, vocab_only=True) as target, tempfile.TemporaryDirectory() as folder:
        path, vocab = Path(folder) / "circle.gguf", target.vocab
        texts = {
            file.name: vocab.tokenize(file.read_text(encoding="utf-8"), add_special=False)[
                : args.prompt + args.n
            ]
            for file in args.text
        }
        for name, ids in texts.items():
            circle = list(dict.fromkeys(ids[args.prompt :]))
            if args.engine or not path.exists():
                write_circle(path, circle, target.info.n_vocab)
            with (
                Model(path, load_mtp=True) as model,
                Context(model, n_ctx=64, n_threads=1, is_head=True) as context,
            ):
                for n_slots in (0, *args.slots):
                    replay(name, ids, args.prompt, context, target, n_slots)
            for n_slots in (0, *args.slots) if args.engine else ():
                accepted, drafted = accepted_of_circle(path, circle, n_slots)
                print(
                    f"{name}, {len(circle)} distinct ids twice, {n_slots or 'all'} slots: the "
                    f"engine accepted {accepted} of {drafted}",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
