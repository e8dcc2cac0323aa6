"""The cost of sampling a row by a schema, with the engine's GBNF and with llguidance.

``python benchmarks/guided_rows.py MODEL.gguf``

GBNF generates a text of each of fifty schemas (tests/moving/schemas.py) from random logits. Then
both sample at each of its tokens, with the token likeliest ("allowed": the first choice is valid)
and least likely ("masked": the vocabulary must be masked). Figures are microseconds of a row with
sampling, median and worst of the fifty medians. "plain" has no grammar.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from pyllama_spec.constraints import Guide, schema_grammar
from pyllama_spec.engine import Model, Sampler, SamplerParams
from pyllama_spec.requests.guided import GuidedSampler
from tests.moving.schemas import SCHEMAS

Row = npt.NDArray[np.float32]
MAX_TOKENS = 400
GREEDY: dict[str, Any] = {"temperature": 0.0}


def written(model: Model, grammar: str, rows: Row) -> list[int]:
    """Generates a text by the grammar; returns its tokens."""
    chain, tokens = Sampler(model, SamplerParams(grammar=grammar, **GREEDY)), []
    for i in range(MAX_TOKENS):
        token = chain.sample_row(rows[i % len(rows)])
        chain.accept(token)
        tokens.append(token)
        if model.vocab.is_eog(token):
            break
    return tokens


def costs(make: Callable[[], Any], rows: Row, tokens: list[int]) -> tuple[float, float, float]:
    """Seconds to make a sampler, and per row with a valid and an invalid first choice."""
    start = perf_counter()
    chain = make()
    made_s = perf_counter() - start
    allowed, masked = [], []
    for i, token in enumerate(tokens):
        row = rows[i % len(rows)].copy()
        row[token] = 100.0
        start = perf_counter()
        assert chain.sample_row(row) == token
        allowed.append(perf_counter() - start)
        # Id 0 becomes the first choice, and is invalid: it has no text.
        row[token], row[0] = row.min() - 1, 200.0
        start = perf_counter()
        chain.sample_row(row)
        masked.append(perf_counter() - start)
        chain.accept(token)
    return made_s, statistics.median(allowed), statistics.median(masked)


def main(path: str) -> None:
    """Prints a table."""
    model = Model(path, vocab_only=True)
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((16, model.vocab.n_tokens)).astype(np.float32) * 3
    plain = Sampler(model, SamplerParams(**GREEDY))
    start = perf_counter()
    guided(model, SCHEMAS[0])
    first_s = perf_counter() - start
    seconds: dict[str, list[tuple[float, float, float]]] = {
        "plain": [],
        "GBNF": [],
        "llguidance": [],
    }
    for schema in SCHEMAS:
        rules = schema_grammar(schema)
        tokens = written(model, rules, rows)
        seconds["plain"].append(costs(lambda: plain, rows, tokens[:20]))
        params = SamplerParams(grammar=rules, **GREEDY)
        seconds["GBNF"].append(costs(lambda p=params: Sampler(model, p), rows, tokens))  # type: ignore[misc]
        seconds["llguidance"].append(costs(lambda s=schema: guided(model, s), rows, tokens))  # type: ignore[misc]
    print(f"{model.path.name}: the first matcher of a model takes {first_s:.2f} s")
    print("| | made (ms) | worst | row, allowed (us) | worst | row, masked (us) | worst |")
    print("|---|---|---|---|---|---|---|")
    for name, each in seconds.items():
        cells = []
        for values, unit in zip(zip(*each, strict=True), (1e3, 1e6, 1e6), strict=True):
            cells += [f"{unit * statistics.median(values):.1f}", f"{unit * max(values):.1f}"]
        print(f"| {name} | {' | '.join(cells)} |")


def guided(model: Model, schema: dict[str, Any]) -> GuidedSampler:
    """A llguidance sampler, with the white space of our GBNF."""
    options = {"whitespace_flexible": True, "whitespace_pattern": " ?"}
    text = json.dumps({**schema, "x-guidance": options})
    return GuidedSampler(model, Sampler(model, SamplerParams(**GREEDY)), Guide("json_schema", text))


if __name__ == "__main__":
    main(sys.argv[1])
