"""Compares small models as drafts of one target: text, acceptance rate and cost of a round.

    python -m benchmarks.draft_models -m TARGET.gguf -d SMALL.gguf -d OTHER.gguf --fixed 4 -t 1

Each prompt is generated greedily, and seeded at temperature 0.8 with penalties, or in the `--ways`
that are named (warm and hot: 0.8 and 1.2 with the default cuts). The sides are plain decoding, the
controller, and each fixed number of drafted tokens; their order rotates with the prompts. With
`--acceptance exact distribution` each draft runs twice, the second time with rejection sampling.
Lookups in the text are off, so that only the model is measured. Times are processor time, which
other programs disturb less than wall time. Ratios include the prompts, the cost of a round does
not. Results so far are written to --json after each prompt, so that a run may be stopped early.
`--merge A.json B.json` prints several runs together, such as one from `--first 13` on. The exit
status is 1 if a text differs, except by rejection sampling.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from time import monotonic, process_time

from pyllama_spec.bench.config import load_prompts
from pyllama_spec.bench.sides import Run, Side
from pyllama_spec.chat.template import ChatTemplate
from pyllama_spec.drafters import Draft, DraftRequest, NoDrafter, SmallModel
from pyllama_spec.engine import ContextParams, Model
from pyllama_spec.llama.loading import open_runtime
from pyllama_spec.requests.options import ACCEPTANCE, RequestOptions
from pyllama_spec.speculative import FixedLength, ProfitController

PROMPTS = Path(__file__).parent / "mixed_prompts.jsonl"
WAYS = {
    "greedy": RequestOptions(temperature=0.0),
    "seeded": RequestOptions(
        temperature=0.8, seed=7, repeat_penalty=1.1, frequency_penalty=0.2, presence_penalty=0.2
    ),
    "warm": RequestOptions(temperature=0.8, seed=7),
    "hot": RequestOptions(temperature=1.2, seed=7),
}
# The most that the controller may draft.
MAX_DRAFT = 8
BY_CHANCE = "distribution"


@dataclass(frozen=True, slots=True)
class Text:
    """The stored result of a run; seconds are processor time."""

    prompt: str
    equal: bool
    n_tokens: int
    n_rounds: int
    n_asked: int
    n_drafted: int
    n_accepted: int
    cpu_s: float
    rounds_s: float
    draft_s: float
    plain_s: float

    @classmethod
    def of(cls, prompt: str, run: Run, plain: Run, draft_s: float) -> Text:
        """The result of a run, compared with plain decoding's run."""
        return cls(
            prompt, run.tokens == plain.tokens, run.n_decoded, len(run.rounds),
            sum(drafted > 0 for drafted, _ in run.rounds),
            sum(drafted for drafted, _ in run.rounds),
            sum(accepted for _, accepted in run.rounds),
            run.cpu_s, run.rounds_cpu_s, draft_s, plain.cpu_s,
        )  # fmt: skip


Texts = dict[str, dict[str, list[Text]]]


class Timed(SmallModel):
    """Sums the processor time of its drafts."""

    draft_s = 0.0

    def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        """Proposes as SmallModel does, and adds the processor time."""
        start = process_time()
        drafts = super().propose(requests)
        self.draft_s += process_time() - start
        return drafts


def plain_of(name: str) -> str:
    """The name of the plain side with which a side's texts are compared."""
    return "plain noise" if name.endswith("noise") else "plain"


@contextlib.contextmanager
def open_sides(
    model: Model,
    drafts: dict[str, Model],
    lengths: list[int],
    options: RequestOptions,
    threads: int,
    acceptance: list[str],
) -> Iterator[dict[str, tuple[Side, Timed | None]]]:
    """Opens plain decoding, and each draft with each length (0: the controller), by name."""
    params = ContextParams(n_ctx=1024, n_batch=128, n_ubatch=128, n_threads=threads)
    with contextlib.ExitStack() as stack:
        sides: dict[str, tuple[Side, Timed | None]] = {}
        # With shared noise plain decoding samples another text.
        for accept in ("exact", *({"noise"} & set(acceptance))):
            plain = open_runtime(model, params, NoDrafter(), None, acceptance=accept)
            sides[plain_of(accept)] = stack.enter_context(Side(plain, options)), None
        for name, draft in drafts.items():
            for n, accept in product(lengths, acceptance):
                drafter = Timed(draft, n or MAX_DRAFT)
                controller = FixedLength() if n else ProfitController()
                runtime = open_runtime(
                    model, params, drafter, n or MAX_DRAFT, controller=controller,
                    acceptance=accept,
                )  # fmt: skip
                side = stack.enter_context(Side(runtime, options, drafter))
                way = "" if accept == "exact" else f" {accept}"
                sides[f"{name} {n or 'profit'}{way}"] = side, drafter
        yield sides


def show(texts: Texts) -> None:
    """Prints a line for each side."""
    for way, by_name in texts.items():
        for name, of in by_name.items():
            rounds, drafted = sum(t.n_rounds for t in of), sum(t.n_drafted for t in of)
            draft_ms = 1e3 * sum(t.draft_s for t in of) / max(rounds, 1)
            ratios = [t.plain_s / t.cpu_s for t in of]
            print(
                f"{way} {name}: {sum(t.equal for t in of)} of {len(of)} texts equal, "
                f"{sum(t.n_tokens for t in of)} tokens, {drafted} drafted, "
                f"{sum(t.n_accepted for t in of) / max(drafted, 1):.3f} accepted, "
                f"{sum(t.n_tokens for t in of) / max(rounds, 1):.2f} tokens a round, draft "
                f"{draft_ms:.1f} + rest "
                f"{1e3 * sum(t.rounds_s for t in of) / max(rounds, 1) - draft_ms:.1f} ms a round, "
                f"drafted in {sum(t.n_asked for t in of)} of {rounds} rounds; plain over it "
                f"{sum(t.plain_s for t in of) / sum(t.cpu_s for t in of):.3f} (median "
                f"{statistics.median(ratios):.3f}, {min(ratios):.3f} .. {max(ratios):.3f})",
                flush=True,
            )


def read(paths: list[Path]) -> Texts:
    """Reads the texts of several runs."""
    out: Texts = {}
    for path in paths:
        for way, by_name in json.loads(path.read_text(encoding="utf-8")).items():
            for name, texts in by_name.items():
                out.setdefault(way, {}).setdefault(name, []).extend(Text(**t) for t in texts)
    return out


def measure(args: argparse.Namespace) -> Texts:
    """Generates and measures all texts."""
    end = monotonic() + args.seconds
    lengths = ([] if args.fixed_only else [0]) + args.fixed
    texts: Texts = {way: {} for way in args.ways}
    with Model(args.model) as model, contextlib.ExitStack() as stack:
        drafts = {path.stem: stack.enter_context(Model(path)) for path in args.draft}
        by_way = {
            way: stack.enter_context(
                open_sides(model, drafts, lengths, WAYS[way], args.threads, args.acceptance)
            )
            for way in args.ways
        }
        template = ChatTemplate.of_model(model)
        prompts = load_prompts(args.prompts)
        for at, prompt in enumerate(prompts[args.first - 1 :] + prompts[: args.first - 1]):
            if monotonic() > end:
                break
            ids = prompt.as_chat(None).tokens(model.vocab, template)
            for way, sides in by_way.items():
                names = list(sides)
                turn, runs = at % len(names), {}
                for name in names[turn:] + names[:turn]:
                    side, drafter = sides[name]
                    before = drafter.draft_s if drafter else 0.0
                    run = side.run(ids, args.max_tokens)
                    runs[name] = run, (drafter.draft_s if drafter else 0.0) - before
                for name in names:
                    run, draft_s = runs[name]
                    plain, _ = runs[plain_of(name)]
                    of = texts[way].setdefault(name, [])
                    of.append(Text.of(prompt.id, run, plain, draft_s))
            load = os.getloadavg()[0]
            print(f"{at + 1} prompts: {prompt.id}, load {load:.1f}", file=sys.stderr, flush=True)
            if args.json is not None:
                kept = {w: {n: [asdict(t) for t in of] for n, of in b.items()}
                        for w, b in texts.items()}  # fmt: skip
                args.json.write_text(json.dumps(kept) + "\n", encoding="utf-8")
    return texts


def main() -> int:
    """Measures and prints; returns 1 if a text differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", type=Path)
    parser.add_argument("-d", "--draft", type=Path, action="append", default=[])
    parser.add_argument("--fixed", type=int, action="append", default=[])
    parser.add_argument("--fixed-only", action="store_true", help="without the controller")
    parser.add_argument("--prompts", type=Path, default=PROMPTS)
    parser.add_argument("--first", type=int, default=1, help="the prompt to begin with [1]")
    parser.add_argument("--ways", nargs="+", default=["greedy", "seeded"], choices=list(WAYS))
    parser.add_argument("--acceptance", nargs="+", default=["exact"], choices=ACCEPTANCE)
    parser.add_argument("-n", "--max-tokens", type=int, default=128)
    parser.add_argument("-t", "--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no prompt later")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--merge", type=Path, nargs="+", metavar="JSON")
    args = parser.parse_args()
    if not args.merge and (args.model is None or not args.draft):
        parser.error("give -m and -d, or --merge")
    texts = read(args.merge) if args.merge else measure(args)
    show(texts)
    exact = [
        text
        for by_name in texts.values()
        for name, of in by_name.items()
        if not name.endswith(BY_CHANCE)
        for text in of
    ]
    return int(not all(text.equal for text in exact))


if __name__ == "__main__":
    sys.exit(main())
