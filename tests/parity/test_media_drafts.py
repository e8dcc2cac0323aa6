"""Drafts behind pictures: heads read the picture's rows, a small model and copies the text alone.

The colours' projector makes of each patch the row of its colour's letter, so that to every head
with the target's embeddings a picture is what its letters are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pyllama_spec.drafters import DFlash, Draft, DraftRequest, Eagle3, Mtp, SmallModel, Suffix
from pyllama_spec.drafters.base import NoDrafter
from pyllama_spec.drafters.heads import Head
from pyllama_spec.drafters.prompt_lookup import PromptLookup
from pyllama_spec.engine import Batch, Context, Sampler, SamplerParams
from pyllama_spec.engine.media import MediaRows, Part, Projector, joined
from pyllama_spec.engine.model import HEAD_ROWS
from pyllama_spec.speculative import SequenceState, SpeculativeLoop
from tests.media_tools import picture, prompt_of, seeing
from tests.models import model_path, perm_continuation, perm_next
from tests.models.projector import COLOUR_TOKENS, CONTROL_NAMES, colour_image
from tests.mtp_tools import mtp_context, with_head
from tests.oracles import GREEDY, tiny_context

N = 24
SIZES: Any = {"n_ctx": 1024, "n_batch": 512, "n_ubatch": 512}
COLOURS = np.random.default_rng(3).integers(0, 8, (3, 5))
LETTERS = tuple(COLOUR_TOKENS[colour] for colour in COLOURS.ravel())
HEADS = {
    "gemma3": ("eagle3", "dflash"), "idefics3": ("eagle3", "dflash"),
    "qwen3vl": ("eagle3", "dflash", "dflash-mrope", "mtp"),
}  # fmt: skip
Parts = tuple[Part, ...]


def head_of(kind: str, name: str, **own: Any) -> tuple[Context, Head]:
    """A random head, and a context of the target of a kind that it drafts for."""
    names = CONTROL_NAMES[kind]
    if name == "mtp":
        mtp = Mtp(**own)
        return mtp_context(with_head("qwen35", n_heads=1, control_names=names), mtp, **SIZES), mtp
    extra = {"mrope": True} if name == "dflash-mrope" else {}
    path = model_path(name.partition("-")[0], control_names=names, **extra)
    drafter = Eagle3(path, 4, **own) if name == "eagle3" else DFlash(path, **own)
    return tiny_context(seeing(kind), target_layers=drafter.target_layers, **SIZES), drafter


def answer(
    loop: SpeculativeLoop, state: SequenceState, parts: Parts, sampling: SamplerParams = GREEDY
) -> list[int]:
    """The text after a prompt."""
    tokens, media = joined(parts)
    loop.prefill(state, tokens, media=media)
    steps = loop.generate(state, Sampler(loop.target.model, sampling), N)
    return [token for step in steps for token in step.tokens]


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k, names in HEADS.items() for n in names])
def test_same_text(kind: str, name: str) -> None:
    parts = prompt_of(kind, "see ", picture(40, 50), " beside ", picture(33, 47, 2), " what is it")
    context, drafter = head_of(kind, name)
    for sampling in (GREEDY, SamplerParams(temperature=1.0, seed=7)):
        loop = SpeculativeLoop(context, drafter)
        text = answer(loop, SequenceState(), parts, sampling)
        assert loop.stats.drafted and loop.stats.reason_off is None
        # Rows of a picture share places where the head has a place for them.
        beside = drafter.context
        assert beside is not None
        assert beside.memory.media == (context.memory.media if beside.has_grid else {})
        assert text == answer(
            SpeculativeLoop(context, NoDrafter()), SequenceState(), parts, sampling
        )


@pytest.mark.parametrize("way", ["window", "paused", "saved"])
@pytest.mark.parametrize("name", HEADS["qwen3vl"])
def test_a_head_goes_on_behind_pictures(name: str, way: str) -> None:
    """Where its first rows were dropped, in the middle of a picture too, or its state was saved."""
    images = [picture(40, 50), picture(33, 47, 2)]
    turns = [prompt_of("qwen3vl", f"see {i}", image, " what") for i, image in enumerate(images)]
    context, drafter = head_of("qwen3vl", name, **({"n_ctx": 60} if way == "window" else {}))
    loop, state = SpeculativeLoop(context, drafter), SequenceState()
    plain = SpeculativeLoop(head_of("qwen3vl", name)[0], NoDrafter())
    if way == "paused":
        drafter.memory_or_fail()._use = 0.0
    prompt: Parts = ()
    for turn in (*turns, *turns):
        prompt = (*prompt, *turn)
        n_before = state.n_decoded
        text = answer(loop, state, prompt)
        assert loop._run.n_cached == n_before or way == "paused"
        assert text == answer(plain, SequenceState(), prompt)
        assert loop.stats.reason_off is None and loop.stats.drafted
        prompt = (*prompt, tuple(text))
        if way == "saved":
            saved = loop.round.sequences.save(state)
            loop.round.sequences.restore(state, saved)
            assert drafter.memory_or_fail().tokens(0) == state.tokens


def read(kind: type[Head], parts: list[Parts], path: Any, **params: Any) -> list[Draft]:
    """What a head of PERM drafts after each turn of a chat."""
    out = []
    with kind(path, 4) as drafter:
        context = tiny_context(
            seeing("colours"), target_layers=drafter.target_layers, **{**SIZES, **params}
        )
        loop, state = SpeculativeLoop(context, drafter), SequenceState()
        prompt: Parts = ()
        for turn in parts:
            prompt = (*prompt, *turn)
            text = answer(loop, state, prompt)
            assert loop.stats.reason_off is None
            out.append(drafter.propose([DraftRequest(0, state.tokens, 4)])[0])
            prompt = (*prompt, tuple(text))
    return out


@pytest.mark.parametrize(("n_batch", "n_ubatch"), [(7, 7), (512, 7), (512, 512)])
@pytest.mark.parametrize("kind", [Eagle3, DFlash])
def test_a_picture_is_read_as_its_letters(kind: type[Head], n_batch: int, n_ubatch: int) -> None:
    """Random heads, to which every row, embedding and place before it matters."""
    options: Any = {"n_embd": 320, "own_embedding": False}
    options |= {"target_n_embd": 320} if kind is Eagle3 else {"own_output": False}
    path = model_path(kind.kind.arch, **options)
    image = prompt_of("colours", colour_image(COLOURS))
    texts = [prompt_of("colours", text) for text in ("see ", " and ", " beside ", " what")]
    drafts = [
        read(kind, [(*texts[0], *one, *texts[1]), (*texts[2], *one), (*one, *texts[3])], path,
             n_batch=n_batch, n_ubatch=n_ubatch)
        for one in (image, (LETTERS,))
    ]  # fmt: skip
    for ours, theirs in zip(*drafts, strict=True):
        assert ours.ids == theirs.ids and ours.probabilities is not None
        assert ours.probabilities == pytest.approx(theirs.probabilities, rel=1e-3)


def test_a_head_of_the_model_itself_reads_places_in_a_grid() -> None:
    """What an MTP head drafts is what it gives when a context of its own is fed by hand."""
    parts = prompt_of("qwen3vl", "see ", picture(40, 50), " beside ", picture(33, 47, 2), " what")
    context, drafter = head_of("qwen3vl", "mtp")
    loop, state = SpeculativeLoop(context, drafter), SequenceState()
    tokens, media = joined(parts)
    loop.prefill(state, tokens, media=media)
    (step, *_) = loop.generate(state, Sampler(context.model, GREEDY), 1)
    draft = drafter.propose([DraftRequest(0, state.tokens, 1)])[0]

    model = context.model
    info = model.info
    target = mtp_context(model, Mtp(), **SIZES)
    head = Context(model, target=target, is_window=True, is_head=True, n_threads=1, **SIZES)
    texts, images = Batch(512), Batch(512, n_row=info.n_embd_inp)
    pairs = Batch(512, n_row=head.n_row)
    before, at = np.zeros((1, head.n_row), np.float32), 0
    for part in (*parts, step.tokens):
        rows = part.rows if isinstance(part, MediaRows) else None
        if isinstance(part, MediaRows):
            images.set_media(part.rows, part.positions + at)
            target.decode(images)
        else:
            texts.clear()
            texts.extend(part, at)
            target.decode(texts)
        features = target.layer_input(HEAD_ROWS).copy()
        shifted = np.concatenate((before, features[:-1]))
        if isinstance(part, MediaRows):
            pairs.set_media(shifted, part.positions + at, embd=rows)
            at += part.n_positions
        else:
            pairs.clear()
            pairs.extend(part, at, rows=[shifted], output_last=True)
            at += len(part)
        head.decode(pairs)
        before = features[-1:]
    ids, p, _ = head.draft_candidates(len(step.tokens) - 1)
    assert draft.ids[0] == ids[0] and draft.probabilities is not None
    assert draft.probabilities[0] == pytest.approx(p[0], rel=1e-4)


def perm_prompts(tail: int) -> list[Parts]:
    """A picture and a tail that follows PERM, and the tail alone."""
    image = prompt_of("colours", "see ", colour_image(COLOURS))
    follows = (LETTERS[-1], *perm_continuation(LETTERS[-1], tail, perm_next()))
    return [(*image, follows[1:]), (follows,)]


PERM_DRAFTS: dict[str, tuple[Callable[[], Any], int]] = {
    "eagle3": (lambda: Eagle3(model_path("perm_eagle3"), 4), 0),
    "eagle3-token": (lambda: Eagle3(model_path("perm_eagle3", read_token=True), 4), 0),
    "dflash": (lambda: DFlash(model_path("perm_dflash")), 0),
    "dflash-spread": (lambda: DFlash(model_path("perm_dflash", read="spread")), 20),
    "small": (lambda: SmallModel(seeing("colours").path, 4), 1),
}


@pytest.mark.parametrize("name", PERM_DRAFTS)
def test_a_picture_costs_no_accepted_token(name: str) -> None:
    make, tail = PERM_DRAFTS[name]
    counts = []
    for parts in perm_prompts(tail):
        with make() as drafter:
            context = tiny_context(
                seeing("colours"), target_layers=drafter.target_layers, **SIZES
            )  # fmt: skip
            loop = SpeculativeLoop(context, drafter)
            answer(loop, SequenceState(), parts)
            counts.append((loop.stats.rounds, loop.stats.drafted, loop.stats.accepted))
    assert counts[0] == counts[1] and counts[0][1] == counts[0][2] > 0


def test_a_picture_costs_no_accepted_token_of_the_models_own_head() -> None:
    model = with_head("perm_mtp", arch="qwen35")
    path = model_path("projector", family="colours", n_embd=model.info.n_embd)
    projector, counts = Projector(model, path, n_threads=1), []
    with projector, Mtp() as drafter:
        loop = SpeculativeLoop(mtp_context(model, drafter), drafter)
        for parts in (projector.image(colour_image(COLOURS)), (LETTERS,)):
            text = answer(loop, SequenceState(), parts)
            assert text == perm_continuation(LETTERS[-1], N, perm_next())
            counts.append((loop.stats.rounds, loop.stats.drafted, loop.stats.accepted))
    assert counts[0] == counts[1] and counts[0][1] == counts[0][2] > 0


@pytest.mark.parametrize("make", [PromptLookup, Suffix])
def test_copies_know_pictures_by_their_content_alone(make: Callable[[], Any]) -> None:
    """They copy text from before pictures, and nothing of a picture."""
    image, other = (prompt_of("colours", colour_image(COLOURS ^ k)) for k in (0, 1))
    said = prompt_of("colours", "the thing that is in it is what it is")[0]
    assert isinstance(said, tuple)
    parts = (said, *image, said, *other, said[:6])
    tokens, _ = joined(parts)
    with make() as drafter:
        loop = SpeculativeLoop(tiny_context(seeing("colours"), **SIZES), drafter)
        answer(loop, SequenceState(), parts)
        for n_less in (0, 6):  # after the text, and after the picture
            drafter.truncate(0, len(tokens) - n_less)
            (draft,) = loop.drafter.propose([DraftRequest(0, list(tokens), 4)])
            assert tuple(draft.ids) == (() if n_less else said[6:10])


def test_texts_between_pictures_are_remembered() -> None:
    image = prompt_of("colours", colour_image(COLOURS))
    said = prompt_of("colours", "the thing that is in it is what it is")[0]
    assert isinstance(said, tuple)
    with Suffix() as drafter:
        loop = SpeculativeLoop(tiny_context(seeing("colours"), **SIZES), drafter)
        answer(loop, SequenceState(), (*image, said, *image))
        loop.prefill(SequenceState(), said[:6])
        (draft,) = loop.drafter.propose([DraftRequest(0, list(said[:6]), 4)])
        assert tuple(draft.ids) == said[6:10] and draft.is_remembered
