"""Estimates the gain of draft trees and of sampled drafts, from traces of real drafts.

    python -m benchmarks.tree_drafts record -m TARGET.gguf -d DRAFT.gguf -o TRACE.json
    python -m benchmarks.tree_drafts show TRACE.json --rows 1.0,1.12,1.4,1.67,2.3 --step 0.1

`record` generates texts by plain decoding, greedily or at a temperature with the default cuts. At
each position it stores the draft's candidates for the next tokens, with their probabilities, given
the text's own tokens before each. Such a trace shows how many tokens of any chain or tree would
have been accepted there. An EAGLE-3 head has two candidates a position, and the votes of its
n-grams; a small model of the same vocabulary ranks all tokens. Lookups in the text are off.

`show` finds the best chain and the best tree on one half of the texts, and evaluates them on the
other half. `--rows` has the costs of verify batches of 1, 2, 3 ... rows over one row, `--step` that
of a drafted position. A tree's levels cost the draft as much as a chain's tokens, and verifying a
tree costs as much as verifying a chain of as many tokens: both favour the tree. For texts at a
temperature it compares two rules: sampled drafts accepted with min(1, p/q) (arXiv 2211.17192), and
drafts accepted if they equal the target's own sample.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyllama_spec.bench.config import load_prompts
from pyllama_spec.chat.template import ChatTemplate
from pyllama_spec.drafters import NoDrafter
from pyllama_spec.drafters.base import Draft, Drafter, DraftRequest, Vote
from pyllama_spec.drafters.eagle3 import Eagle3
from pyllama_spec.drafters.model_drafter import add_lookup
from pyllama_spec.drafters.options import DraftOptions
from pyllama_spec.engine import Batch, Context, ContextParams, Model, Sampler, SamplerParams
from pyllama_spec.llama.loading import open_runtime
from pyllama_spec.speculative import SequenceState, SpeculativeLoop
from pyllama_spec.speculative.controller import Controller, Span

# No text repeats so many tokens: lookups are off, and a head's n-grams stay on.
NO_COPY = 1024
N_RANKS = 3
TOP = 64
DEFAULTS = SamplerParams()
Row = npt.NDArray[np.float32]
# [(token, probability) ...], likeliest first.
Ranked = list[tuple[int, float]]


def probabilities(logits: Row, temperature: float) -> Row:
    """The distribution over the whole vocabulary; at a temperature after the default cuts."""
    x = logits.astype(np.float64)
    if temperature:
        x = cut(x) / temperature
    p = np.exp(x - x.max())
    return np.asarray(p / p.sum(), np.float32)


def cut(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Applies the default top_k, top_p and min_p: logits that they cut become minus infinity."""
    order = np.argsort(-x)[: DEFAULTS.top_k]
    p = np.exp(x[order] - x[order[0]])
    p /= p.sum()
    order = order[: int(np.searchsorted(np.cumsum(p), DEFAULTS.top_p)) + 1]
    order = order[x[order] >= x[order[0]] + np.log(DEFAULTS.min_p)]
    out = np.full(len(x), -np.inf)
    out[order] = x[order]
    return out


def ranked(p: Row, n: int = TOP) -> Ranked:
    """The n likeliest tokens."""
    ids = np.argpartition(-p, n)[:n]
    ids = ids[np.argsort(-p[ids], kind="stable")]
    return [(int(i), float(p[i])) for i in ids]


class Forced(Eagle3):
    """A head that drafts a known text, and stores its own candidates at each position."""

    def __init__(self, path: Path, n_places: int) -> None:
        super().__init__(path, n_places)
        self.text: list[int] = []
        self.places: dict[int, list[Ranked]] = {}

    def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        """Stores its candidates at each position ahead; drafts the text's own tokens."""
        (request,) = requests
        n, own, votes = len(request.tokens), request.prior, []

        def forced(drafted: Sequence[int]) -> list[Vote]:
            said = [] if own is None else list(own(drafted))
            votes.append(said)
            at = n + len(drafted)
            return [*said, Vote(self.text[at], 1.0, 1e9)] if at < len(self.text) else said

        drafts = super().propose([request._replace(prior=forced)])
        found = zip(drafts[0].candidates or (), votes, strict=False)
        self.places[n] = [_mixed(candidates, said) for candidates, said in found]
        return drafts


def _mixed(candidates: Sequence[tuple[int, float]], votes: Sequence[Vote]) -> Ranked:
    """The candidates as drafters.choice.choose() weighs them."""
    scores = dict(candidates)
    for vote in votes:
        scores[vote.token] = scores.get(vote.token, 0.0) + vote.weight * vote.p
    whole = 1.0 + sum(vote.weight for vote in votes)
    return sorted(((i, x / whole) for i, x in scores.items()), key=lambda one: -one[1])


class AskAll(Controller):
    """Requests a full draft in every round, and verifies none of it."""

    name = "ask all"

    def verify_lengths(self, spans: Sequence[Span]) -> Sequence[int]:
        """Returns 0 for each sequence: no drafted token is verified."""
        return [0] * len(spans)


@dataclass(slots=True)
class Recorder:
    """Generates texts of a target, with its own probabilities at each position."""

    model: Model
    n_ctx: int
    params: SamplerParams

    def text(
        self, prompt: list[int], n: int, drafter: Drafter, controller: Controller | None
    ) -> tuple[list[int], list[Ranked]]:
        """Generates n tokens at most; returns them, and the likeliest tokens at each position."""
        context_params = ContextParams(n_ctx=self.n_ctx, n_batch=512, n_threads=1)
        runtime = open_runtime(self.model, context_params, drafter, None, controller=controller)
        rows: list[Ranked] = []

        def observe(row: int, token: int) -> None:
            p = probabilities(runtime.context.logits(row), self.params.temperature)
            best = ranked(p)
            if token not in dict(best):
                best.append((token, float(p[token])))
            rows.append(best)

        try:
            loop, state = SpeculativeLoop.of(runtime.round), SequenceState()
            loop.prefill(state, prompt, remember=False)
            tokens: list[int] = []
            with closing(Sampler(self.model, self.params)) as sampler:
                for step in loop.generate(state, sampler, n, observe):
                    tokens += step.tokens
        finally:
            runtime.context.close()
        return tokens, rows


def of_head(
    recorder: Recorder, draft: Path, prompt: list[int], n: int, n_places: int
) -> Iterator[tuple[int, Ranked, list[Ranked]]]:
    """Yields each position's token, the target's candidates, and the draft's candidates ahead."""
    tokens, rows = recorder.text(prompt, n, NoDrafter(), None)
    head = Forced(draft, n_places)
    head.text = [*prompt, *tokens]
    drafter = add_lookup(head, DraftOptions(lookup=NO_COPY))
    try:
        again, _ = recorder.text(prompt, n, drafter, AskAll())
    finally:
        drafter.close()
    assert again == tokens, "the same text"
    for i, token in enumerate(tokens):
        # The first token comes from the prompt's last row, in no round.
        yield token, rows[i], head.places.get(len(prompt) + i, [])


def of_model(
    recorder: Recorder, draft: Model, prompt: list[int], n: int, n_places: int
) -> Iterator[tuple[int, Ranked, list[Ranked]]]:
    """Yields the same as of_head() for a small model, which decodes the whole text at once."""
    tokens, rows = recorder.text(prompt, n, NoDrafter(), None)
    whole = [*prompt, *tokens]
    context = Context(draft, n_ctx=recorder.n_ctx, n_batch=512, n_threads=1, n_outputs_max=n)
    batch, begin = Batch(len(whole)), len(prompt) - 1
    for i, token in enumerate(whole[:-1]):
        batch.add(token, i, output=i >= begin)
    context.decode(batch)
    held = [
        ranked(probabilities(context.logits(begin + i), recorder.params.temperature))
        for i in range(len(tokens))
    ]
    context.close()
    for i, token in enumerate(tokens):
        yield token, rows[i], held[i : i + n_places]


def record(args: argparse.Namespace) -> None:
    """Records all texts, and writes the trace so far after each."""
    prompts = load_prompts(args.prompts)[: args.n_prompts]
    params = SamplerParams(temperature=args.temperature, seed=args.seed)
    texts: list[Any] = []
    with Model(args.model) as model:
        template = ChatTemplate.of_model(model)
        ids = [prompt.as_chat(None).tokens(model.vocab, template) for prompt in prompts]
        n_ctx = -(-(max(map(len, ids)) + args.max_tokens + args.places) // 256) * 256
        recorder = Recorder(model, n_ctx, params)
        small = None if args.head else Model(args.draft)
        for prompt, tokens in zip(prompts, ids, strict=True):
            how = (args.max_tokens, args.places)
            if small is None:
                places = list(of_head(recorder, args.draft, list(tokens), *how))
            else:
                places = list(of_model(recorder, small, list(tokens), *how))
            texts.append({"id": prompt.id, "places": places})
            what = {"target": args.model.name, "draft": args.draft.name, "texts": texts}
            what["temperature"] = args.temperature
            args.out.write_text(json.dumps(what), encoding="utf-8")
            print(prompt.id, len(places), flush=True)
        if small is not None:
            small.close()


# ---- evaluating a trace


def rank_of(token: int, held: Ranked) -> int:
    """The rank of a token among the first candidates; N_RANKS if it is none of them."""
    found = [i for i, (one, _) in enumerate(held[:N_RANKS]) if one == token]
    return found[0] if found else N_RANKS


def paths_of(text: Any) -> list[tuple[int, ...]]:
    """For each position the ranks of the text's next tokens, as far as the draft looked ahead."""
    tokens = [place[0] for place in text["places"]]
    return [
        tuple(rank_of(token, held) for token, held in zip(tokens[at:], ahead, strict=False))
        for at, (_, _, ahead) in enumerate(text["places"])
        if ahead
    ]


Node = tuple[int, ...]


def frequencies(paths: Sequence[Node]) -> dict[Node, float]:
    """For each node of a tree, a sequence of ranks, the share of positions that reach it."""
    counts: Counter[Node] = Counter()
    for path in paths:
        for depth in range(1, len(path) + 1):
            if path[depth - 1] == N_RANKS:
                break
            counts[path[:depth]] += 1
    return {node: n / len(paths) for node, n in counts.items()}


def accepted(tree: Sequence[Node], paths: Sequence[Node]) -> float:
    """The mean number of accepted tokens of a draft of these nodes."""
    share = frequencies(paths)
    return sum(share.get(node, 0.0) for node in tree)


@dataclass(frozen=True, slots=True)
class Prices:
    """The cost of a batch of 1, 2, 3 ... rows, and of a drafted position, over one row."""

    rows: Sequence[float]
    step: float

    def speedup(self, tree: Sequence[Node], paths: Sequence[Node]) -> float:
        """The speed-up over plain decoding."""
        depth = max((len(node) for node in tree), default=0)
        cost = self.rows[len(tree)] + depth * self.step
        return (1.0 + accepted(tree, paths)) / cost

    def best(self, paths: Sequence[Node], *, is_chain: bool) -> list[Node]:
        """The nodes with the highest speed-up. A tree has the likeliest nodes up to some depth."""
        share = frequencies(paths)
        deepest = max((len(node) for node in share), default=0)
        found: tuple[float, list[Node]] = (1.0, [])
        for depth in range(1, deepest + 1):
            if is_chain:
                tree: list[Node] = [(0,) * i for i in range(1, depth + 1)]
                choices = [tree]
            else:
                nodes = sorted(
                    (node for node in share if len(node) <= depth),
                    key=lambda node: (-share[node], len(node), node),
                )
                choices = [nodes[:n] for n in range(1, len(self.rows))]
            for tree in choices:
                if len(tree) < len(self.rows):
                    found = max(found, (self.speedup(tree, paths), tree), key=lambda x: x[0])
        return found[1]


def matched(tokens: Sequence[int], ahead: Sequence[Ranked]) -> list[float]:
    """1 for each token that is the draft's likeliest one, and so would be accepted; else 0."""
    return [float(bool(held) and held[0][0] == t) for t, held in zip(tokens, ahead, strict=False)]


def rejected(tokens: Sequence[int], own: Sequence[Ranked], ahead: Sequence[Ranked]) -> list[float]:
    """The chance of acceptance if the draft is sampled from q: min(1, q/p) of each token."""
    out = []
    for token, p, held in zip(tokens, own, ahead, strict=False):
        q = dict(held)
        whole = sum(q.values()) or 1.0
        out.append(min(1.0, q.get(token, 0.0) / whole / max(dict(p)[token], 1e-9)))
    return out


def run_lengths(chances: Sequence[Sequence[float]], n: int) -> float:
    """The mean number of accepted tokens of drafts of n."""
    return float(np.mean([np.cumprod(one[:n]).sum() for one in chances]))


def sharpened(held: Ranked, temperature: float) -> Ranked:
    """A head's few candidates at another temperature; it samples only from them."""
    return [(token, p ** (1.0 / temperature)) for token, p in held]


def show(args: argparse.Namespace) -> None:
    """Prints the results of a trace."""
    trace = json.loads(args.trace.read_text("utf-8"))
    texts = trace["texts"]
    prices = Prices([float(x) for x in args.rows.split(",")], args.step)
    halves = [[p for text in texts[i::2] for p in paths_of(text)] for i in (0, 1)]
    paths = halves[0] + halves[1]
    print(f"{trace['target']}, {trace['draft']}, temperature {trace['temperature']:g}: "
          f"{len(texts)} texts, {len(paths)} places")  # fmt: skip
    for depth in range(1, 5):
        reached = [p for p in paths if len(p) >= depth and not any(p[: depth - 1])]
        shares = [sum(p[depth - 1] == rank for p in reached) for rank in range(N_RANKS)]
        said = ", ".join(f"{n / max(len(reached), 1):.3f}" for n in shares)
        print(f"  place {depth}, all before it right ({len(reached)}): candidates right {said}")
    gains = []
    for fit, held_out in (halves, halves[::-1]):
        chain, tree = prices.best(fit, is_chain=True), prices.best(fit, is_chain=False)
        pair = prices.speedup(chain, held_out), prices.speedup(tree, held_out)
        gains.append(pair[1] / pair[0])
        n_levels = max(map(len, tree), default=0)
        print(
            f"  chain of {len(chain)}: {pair[0]:.3f} of plain; tree of {len(tree)} tokens, "
            f"{n_levels} levels: {pair[1]:.3f}; {gains[-1]:.3f}"
        )
    print(f"  tree over chain {np.mean(gains):.3f}")
    if not trace["temperature"]:
        return
    is_head = len(texts[0]["places"][1][2][0]) < TOP
    by_match, by_chance = [], []
    for text in texts:
        tokens = [place[0] for place in text["places"]]
        own = [place[1] for place in text["places"]]
        for at, (_, _, ahead) in enumerate(text["places"]):
            if ahead:
                t = trace["temperature"]
                q = [sharpened(held, t) for held in ahead] if is_head else ahead
                by_match.append(matched(tokens[at:], ahead))
                by_chance.append(rejected(tokens[at:], own[at:], q))
    best = {"match": 1.0, "rejection": 1.0}
    for n in range(1, min(len(prices.rows), 7)):
        cost = prices.rows[n] + n * prices.step
        tokens_of = {
            "match": 1 + run_lengths(by_match, n), "rejection": 1 + run_lengths(by_chance, n)
        }  # fmt: skip
        best = {how: max(best[how], tokens_of[how] / cost) for how in best}
        ratio = tokens_of["rejection"] / tokens_of["match"]
        print(
            f"  drafts of {n}: tokens a round {tokens_of['match']:.3f} where they match, "
            f"{tokens_of['rejection']:.3f} by rejection: {ratio:.3f}"
        )
    print(
        f"  best length each: {best['match']:.3f} of plain where they match, "
        f"{best['rejection']:.3f} by rejection: {best['rejection'] / best['match']:.3f}"
    )


def main() -> None:
    """Runs `record` or `show`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("record")
    one.add_argument("-m", "--model", type=Path, required=True)
    one.add_argument("-d", "--draft", type=Path, required=True)
    one.add_argument("--head", action="store_true", help="the draft is an EAGLE-3 head")
    one.add_argument("-o", "--out", type=Path, required=True)
    one.add_argument("-n", "--max-tokens", type=int, default=64)
    one.add_argument("--places", type=int, default=6, help="how many positions to look ahead")
    one.add_argument("--prompts", type=Path, default=Path("benchmarks/field_prompts.jsonl"))
    one.add_argument("--n-prompts", type=int, default=None, help="only the first N")
    one.add_argument("--temperature", type=float, default=0.0)
    one.add_argument("--seed", type=int, default=1)
    one.set_defaults(run=record)
    two = commands.add_parser("show")
    two.add_argument("trace", type=Path)
    two.add_argument("--rows", required=True)
    two.add_argument("--step", type=float, required=True)
    two.set_defaults(run=show)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
