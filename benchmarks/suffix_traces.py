"""Records three traces of repetitive work, and measures lookup drafts on them.

    python benchmarks/suffix_traces.py record -m TARGET.gguf [--only agent]
    python benchmarks/suffix_traces.py measure
    python benchmarks/suffix_traces.py beside -m TARGET.gguf -d HEAD.gguf
    python benchmarks/suffix_traces.py use -m TARGET.gguf -d HEAD.gguf --only records STORE

A trace is a list of requests: the prompt and a model's greedy answer, as ids. This script makes the
prompts: an agent's sessions with tool calls and contents of files, edits of one source file,
records extracted by one schema. Greedy text does not depend on the drafter. So tokens per round are
counted by replaying the answers to a drafter, without a clock. A drafter that remembers first gets
a number of earlier requests; the measured requests are always the same. A head needs rows of the
target, which decodes each text once for them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyllama_spec.drafters import (
    Committed,
    Drafter,
    DraftOptions,
    LookupFirst,
    PromptLookup,
    Suffix,
)
from pyllama_spec.drafters.registry import open_draft
from pyllama_spec.drafters.suffix.upkeep import Played, Told, play, play_all
from pyllama_spec.engine import Batch, Context, Model
from pyllama_spec.speculative.sequence import n_common

FOLDER = Path(__file__).parent / "traces"
# The number of measured requests of each trace: the last ones.
N_MEASURED = {"agent": 40, "edits": 20, "records": 50}
N_EARLIER = (0, 10, 100)
_BY_RULE = "head, prompt lookup"
# The size of the context that computes rows, and of its batches.
_N_CTX, _CHUNK = 4096, 512


class Recorded(NamedTuple):
    """One request of a trace: the ids of its prompt, and those of the answer."""

    prompt: list[int]
    answer: list[int]


# ---- the prompts

_NAMES = ("Ada Moreno", "Ben Okafor", "Cora Lindqvist", "Dev Patel", "Elif Demir", "Finn Ryan",
          "Grace Chen", "Hugo Laurent", "Iris Novak", "Jonas Weber", "Kira Tanaka",
          "Leo Rossi")  # fmt: skip
_CITIES = ("Oslo", "Porto", "Lyon", "Graz", "Turin", "Bergen", "Ghent", "Malaga", "Leeds", "Brno")
_ITEMS = (
    "desk lamp", "office chair", "paper tray", "label printer", "steel cabinet", "wall clock",
)  # fmt: skip
_FILES = {
    "stock.py": '''class Stock:
    """What lies on the shelves."""

    def __init__(self):
        self.items = {}

    def add(self, name, count):
        if count < 1:
            raise ValueError("count must be at least 1")
        self.items[name] = self.items.get(name, 0) + count

    def remove(self, name, count):
        if self.items.get(name, 0) < count:
            raise ValueError("not enough of " + name)
        self.items[name] -= count

    def total(self):
        return sum(self.items.values())
''',
    "orders.py": '''from stock import Stock

class Order:
    """What a customer wants."""

    def __init__(self, customer):
        self.customer = customer
        self.lines = []

    def add_line(self, name, count, price):
        self.lines.append((name, count, price))

    def total(self):
        return sum(count * price for _, count, price in self.lines)

    def ship(self, stock):
        for name, count, _ in self.lines:
            stock.remove(name, count)
''',
    "report.py": '''def report(orders):
    """A line for each order."""
    lines = []
    for order in orders:
        lines.append(order.customer + ": " + str(order.total()))
    return "\\n".join(lines)

def best_customer(orders):
    totals = {}
    for order in orders:
        totals[order.customer] = totals.get(order.customer, 0) + order.total()
    return max(totals, key=totals.get)
''',
}  # fmt: skip
_IDENTIFIERS = (
    "items", "name", "count", "lines", "customer", "price", "total", "orders", "add", "remove",
)  # fmt: skip
_WORDS = (
    "article", "amount", "shelf", "client", "cost", "entry", "batch", "parcel", "record", "unit",
    "bundle", "sheet", "buyer", "stack", "label", "share", "slot", "ticket", "voucher", "crate",
)  # fmt: skip
_SYSTEM = (
    "You maintain a small Python program. Answer with one tool call as JSON.\n"
    'Tools: {"tool": "read_file", "path": PATH}, {"tool": "write_file", "path": PATH, "content": '
    'TEXT}, {"tool": "run_tests", "path": PATH}'
)


class _Names:
    """The current names of identifiers."""

    def __init__(self, rng: random.Random) -> None:
        self._rng, self._names, self._n = rng, list(_IDENTIFIERS), 0

    def rename(self) -> tuple[str, str]:
        """Renames one; returns its old name, and a new one that was never used."""
        i = self._rng.randrange(len(self._names))
        self._n += 1
        old, new = self._names[i], f"{self._rng.choice(_WORDS)}_{self._n}"
        self._names[i] = new
        return old, new


def agent_session(rng: random.Random, n_turns: int) -> Iterator[str]:
    """Yields the messages to an agent: the next task, and the results of its tools."""
    files, names = dict(_FILES), _Names(rng)
    told = ""
    for turn in range(n_turns):
        path = rng.choice(list(files))
        kind = turn % 3
        if kind == 0:
            yield f"{told}Read the file {path}."
            told = f"Result:\n{files[path]}\n"
        elif kind == 1:
            old, new = names.rename()
            yield (
                f"{told}Write the function of {path} that has `{old}` in it again, with `{new}` "
                "instead."
            )
            files = {one: text.replace(old, new) for one, text in files.items()}
            told = "Result: written.\n"
        else:
            yield f"{told}Run the tests of {path}."
            n_passed, seconds = rng.randrange(3, 20), rng.random()
            told = f"Result: tests/test_{path}: {n_passed} passed in {seconds:.2f} s.\n"
        if turn % 12 == 11:  # older turns only fill the context
            told = "You begin with a new task.\n"


def edits(rng: random.Random, n: int) -> Iterator[str]:
    """Yields edits of a source file, which the model must rewrite whole each time."""
    text, names = _FILES["stock.py"] + "\n" + _FILES["report.py"], _Names(rng)
    for _ in range(n):
        old, new = names.rename()
        yield (
            f"Here is a Python file:\n```python\n{text}```\nRename `{old}` to `{new}` and write "
            "the whole file again."
        )
        text = text.replace(old, new)


def records(rng: random.Random, n: int) -> Iterator[str]:
    """Yields letters of customers, whose facts the model must extract by one schema."""
    example = (
        "Letter: Good day, this is Mona Berg from Kiel. I ordered 3 pieces of the desk lamp on "
        "2026-03-04, please deliver by 2026-03-20.\n"
        'JSON: {"customer": {"name": "Mona Berg", "city": "Kiel"}, "order": {"article": "desk '
        'lamp", "count": 3}, "ordered_on": "2026-03-04", "deliver_by": "2026-03-20"}\n'
    )
    for _ in range(n):
        name, city, item = rng.choice(_NAMES), rng.choice(_CITIES), rng.choice(_ITEMS)
        day = rng.randrange(1, 28)
        yield (
            f"Extract the facts of a letter as JSON.\n{example}Letter: Hello, {name} from {city} "
            f"here. I ordered {rng.randrange(1, 30)} pieces of the {item} on 2026-05-{day:02}, "
            f"please deliver by 2026-06-{day:02}.\nJSON:"
        )


# ---- recording


def record(args: argparse.Namespace) -> None:
    """Generates all answers greedily; writes the trace after each."""
    from pyllama_spec import Llama

    with Llama(args.model, draft="suffix", n_ctx=8192, n_threads=args.threads) as llm:
        for name in ("agent", "records", "edits"):
            requests: list[Recorded] = []
            for one in _answers(llm, name) if args.only in (None, name) else ():
                requests.append(one)
                _write(args.folder, name, requests)


def _answers(llm: Any, name: str) -> Iterator[Recorded]:
    rng = random.Random(7)
    if name == "agent":
        for n_turns in (36, 36, 36, 40):
            messages = [{"role": "system", "content": _SYSTEM}]
            for text in agent_session(rng, n_turns):
                messages.append({"role": "user", "content": text})
                if "new task" in text:
                    messages = [messages[0], messages[-1]]
                yield (one := _ask(llm, messages, 96))
                answer = llm.detokenize(one.answer).decode("utf-8", "replace")
                messages.append({"role": "assistant", "content": answer})
    elif name == "edits":
        for text in edits(rng, 60):
            yield _ask(llm, [{"role": "user", "content": text}], 160)
    else:
        for text in records(rng, 200):
            yield _complete(llm, text, 72)


def _ask(llm: Any, messages: list[dict[str, str]], n: int) -> Recorded:
    found = llm.create_chat_completion(
        messages, max_tokens=n, temperature=0.0, return_token_ids=True
    )
    return _noted(found)


def _complete(llm: Any, text: str, n: int) -> Recorded:
    found = llm.create_completion(
        text, max_tokens=n, temperature=0.0, stop=["\n"], return_token_ids=True
    )
    return _noted(found)


def _noted(found: dict[str, Any]) -> Recorded:
    ids = found["choices"][0]["token_ids"]
    prompt = found.get("prompt_token_ids") or found["choices"][0]["prompt_token_ids"]
    print(f"{len(prompt)} + {len(ids)} tokens", file=sys.stderr, flush=True)
    return Recorded(list(prompt), list(ids))


def _write(folder: Path, name: str, requests: Sequence[Recorded]) -> None:
    """Writes each prompt as the length of its prefix shared with the previous one, and the rest."""
    rows: list[Any] = []
    before: list[int] = []
    for one in requests:
        n = n_common(before, one.prompt)
        rows.append([n, one.prompt[n:], one.answer])
        before = one.prompt
    folder.mkdir(exist_ok=True)
    data = json.dumps(rows, separators=(",", ":")).encode()
    path_of(name, folder).write_bytes(gzip.compress(data, 9, mtime=0))


def path_of(name: str, folder: Path) -> Path:
    """The file of a trace."""
    return folder / f"{name}.json.gz"


def read_trace(name: str, folder: Path = FOLDER) -> list[Recorded]:
    """The requests of a trace, in order."""
    out: list[Recorded] = []
    before: list[int] = []
    for n, rest, answer in json.loads(gzip.decompress(path_of(name, folder).read_bytes())):
        before = [*before[:n], *rest]
        out.append(Recorded(before, answer))
    return out


# ---- measuring


def measure(args: argparse.Namespace) -> None:
    """Prints tokens per round of each trace, and the processor time of a round."""
    print("trace     drafter                       tokens/round  drafted/round  us/round")
    for name, n_measured in N_MEASURED.items():
        if not path_of(name, args.folder).exists():
            continue
        trace, n_measured = read_trace(name, args.folder), min(n_measured, args.requests)
        rest, earlier = trace[-n_measured:], trace[:-n_measured]
        kinds: list[tuple[str, Drafter, int]] = [
            ("prompt-lookup", PromptLookup(), 0),
            ("prompt-lookup, 15", PromptLookup(15), 0),
            ("suffix, this text alone", Suffix(remembers=False), 0),
            *((f"suffix, after {n}", Suffix(), n) for n in N_EARLIER),
        ]
        for words, drafter, n in kinds:
            for one in earlier[len(earlier) - min(n, len(earlier)) :]:
                play(drafter, *one)
            begin = time.process_time()
            played = play_all(drafter, rest)
            micros = 1e6 * (time.process_time() - begin) / played.n_rounds
            print(
                f"{name:9} {words:29} {played.tokens_per_round:12.2f} "
                f"{played.n_drafted / played.n_rounds:14.2f} {micros:9.0f}"
            )


# ---- beside a head


class Rows:
    """The target's rows for the tokens of the measured requests.

    Args:
        target: the model that gave the answers.
        layers: the layer inputs to keep.
        n_threads: CPU threads.

    """

    def __init__(self, target: Model, layers: Sequence[int], n_threads: int | None) -> None:
        self.context = Context(
            target, n_ctx=_N_CTX, n_batch=_CHUNK, n_ubatch=_CHUNK, n_threads=n_threads,
            target_layers=tuple(layers),
        )  # fmt: skip
        self._layers, self._batch = layers, Batch(_CHUNK)
        self._tokens: list[int] = []
        self._rows: list[npt.NDArray[np.float16]] = []

    def of(self, tokens: list[int]) -> list[npt.NDArray[np.float16]]:
        """The rows of each layer, [len(tokens), n_embd]; reuses those of the common prefix."""
        n = min(n_common(self._tokens, tokens), len(tokens) - 1)
        self.context.memory.remove(0, n)
        parts = [[rows[:n]] for rows in self._rows] or [[] for _ in self._layers]
        for at in range(n, len(tokens), _CHUNK):
            self._batch.clear()
            self._batch.extend(tokens[at : at + _CHUNK], at)
            self.context.decode(self._batch)
            for part, layer in zip(parts, self._layers, strict=True):
                part.append(self.context.layer_input(layer).astype(np.float16))
        self._tokens, self._rows = tokens, [np.concatenate(part) for part in parts]
        return self._rows


def told_of(one: Recorded, rows: Sequence[npt.NDArray[np.float16]]) -> Told:
    """The commits that play() gives a drafter that reads rows, each with a round's rows.

    Args:
        one: the request.
        rows: the rows of its tokens, for each layer.

    """
    n_prompt = len(one.prompt)

    def part(tokens: list[int], start: int, first_row: int, n_rows: int) -> Committed:
        these = [layer[first_row : first_row + n_rows].astype(np.float32) for layer in rows]
        n_chosen = max(start + len(tokens) - max(start, n_prompt), 0)
        return Committed(0, tokens, start, these, first_row, n_chosen=n_chosen)

    def told(tokens: list[int], start: int) -> Iterator[Committed]:
        if start:  # a round: the row of the pending token, and those of all but the last new one
            yield part(tokens, start, start - 1, len(tokens))
            return
        for first in range(0, n_prompt, _CHUNK):
            n = min(_CHUNK, n_prompt - first)
            is_last = first + n == n_prompt
            yield part(tokens[first : first + n + is_last], first, first, n)

    return told


def beside(args: argparse.Namespace) -> None:
    """Prints tokens per round of a head alone, with copies of the text, and with a store.

    "prompt lookup" copies what followed the newest place with the same last tokens.
    """
    print("trace     drafter                       tokens/round  drafted/round  us/round  copied")
    target = Model(args.model)
    for name, n_measured in N_MEASURED.items():
        if args.only not in (None, name):
            continue
        trace = read_trace(name, args.folder)
        n_measured = min(n_measured, args.requests)
        rest, earlier = trace[-n_measured:], trace[:-n_measured]
        head = open_draft(args.draft, DraftOptions(lookup=0, max_draft=args.n_draft))
        head.check(target)
        source = Rows(target, head.target_layers, args.threads)
        rows = [list(source.of([*one.prompt, *one.answer])) for one in rest]
        head.close()
        kinds: list[tuple[str, int | None]] = [
            (words, None) for words in ("head alone", _BY_RULE, "head, own copies")
        ]
        kinds += [(f"head, a store, after {n}", n) for n in N_EARLIER]
        for words, n in kinds:
            with tempfile.TemporaryDirectory() as folder:
                store = None if n is None else Path(folder, "store.memory")
                lookup = 0 if words == "head alone" else None
                options = DraftOptions(lookup=lookup, max_draft=args.n_draft, memory=store)
                drafter = open_draft(args.draft, options)
                if words == _BY_RULE:
                    drafter = _by_rule(drafter)
                drafter.attach(source.context)
                if store is not None:
                    _tell(store, target, earlier[len(earlier) - min(n or 0, len(earlier)) :])
                    drafter.begin_request(0, remember=True, user="")  # sees what was written
                begin, played = time.process_time(), Played()
                for one, its in zip(rest, rows, strict=True):
                    played = played.plus(play(drafter, *one, told_of(one, its)))
                micros = 1e6 * (time.process_time() - begin) / played.n_rounds
                copied = getattr(drafter, "n_lookups", 0) / played.n_rounds
                print(
                    f"{name:9} {words:29} {played.tokens_per_round:12.2f} "
                    f"{played.n_drafted / played.n_rounds:14.2f} {micros:9.0f} {copied:7.0%}",
                    flush=True,
                )
                drafter.close()
        source.context.close()


def _by_rule(drafter: Drafter) -> Drafter:
    """The same head after lookups by a simpler rule: what followed the newest place."""
    assert isinstance(drafter, LookupFirst)
    n = drafter.min_ngram
    rule = PromptLookup(drafter.max_draft, max_ngram=n, min_ngram=n)
    return LookupFirst(drafter.drafter, n, drafter.table, rule, drafter.name)


def use(args: argparse.Namespace) -> None:
    """Writes a trace into a store as if a head had drafted it, with the head's misses."""
    target = Model(args.model)
    drafter = open_draft(args.draft, DraftOptions(max_draft=args.n_draft, memory=args.store))
    drafter.check(target)
    source = Rows(target, drafter.target_layers, args.threads)
    drafter.attach(source.context)
    played = Played()
    for one in read_trace(args.only, args.folder)[: args.requests]:
        rows = source.of([*one.prompt, *one.answer])
        played = played.plus(play(drafter, *one, told_of(one, rows)))
    drafter.close()
    print(f"{args.only}: {played.tokens_per_round:.2f} tokens per round, into {args.store}")


def _tell(store: Path, target: Model, requests: Sequence[Recorded]) -> None:
    """Writes earlier requests into a store."""
    teller = Suffix(store=store)
    teller.check(target)
    for one in requests:
        play(teller, *one)
    teller.close()


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(required=True)
    recording = commands.add_parser("record", help="generate all answers")
    recording.add_argument("-m", "--model", required=True)
    recording.add_argument("-t", "--threads", type=int, default=None)
    recording.add_argument("--only", default=None, choices=tuple(N_MEASURED))
    recording.set_defaults(run=record)
    measuring = commands.add_parser("measure", help="measure drafters")
    measuring.set_defaults(run=measure)
    both = commands.add_parser("beside", help="the same for a head, without and with a store")
    both.add_argument("--only", default=None, choices=tuple(N_MEASURED))
    for command in (measuring, both):
        command.add_argument("--requests", type=int, default=1000, help="measure only the last N")
    both.set_defaults(run=beside)
    used = commands.add_parser("use", help="write a trace with a head's misses into a store")
    used.add_argument("store")
    used.add_argument("--only", required=True, choices=tuple(N_MEASURED))
    used.add_argument("--requests", type=int, default=1000, help="write only the first N")
    used.set_defaults(run=use)
    for command in (recording, measuring, both, used):
        command.add_argument("--folder", type=Path, default=FOLDER, help="folder of the traces")
    for command in (both, used):
        command.add_argument("-m", "--model", required=True)
        command.add_argument("-d", "--draft", required=True)
        command.add_argument("-n", "--n-draft", type=int, default=8)
        command.add_argument("-t", "--threads", type=int, default=None)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
