"""Writes docs/llama-server-flags.md: each flag of llama-server, and its equivalent here.

``python -m tools.docs.llama_server_flags`` writes the page. The flags come from the engine's
source, their treatment from the table that the command uses, and the options of `serve` from its
parser. tests/docs compares the page with them. Only names that differ are written by hand.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pyllama_spec.cli import serve
from pyllama_spec.server.llama_server import OF_LLAMA, OF_REQUESTS
from pyllama_spec.server.llama_server_flags import BY_NAME, IDLE, REFUSED
from tools.docs.llama_server_source import SOURCE, TheirFlag, their_flags

PAGE = Path(__file__).resolve().parents[2] / "docs" / "llama-server-flags.md"
SAME, IDLE_WORD, REFUSED_WORD = "the same", "no effect", "refused"
_FLAG = re.compile(r"(?<![\w`-])--?[a-z][\w-]*")
# In the order and the words of llama-server's help.
_GROUPS = {
    "common": "Common params", "sampling": "Sampling params", "spec": "Speculative params",
    "server": "Server params",
}  # fmt: skip
# Fields of the table that have another name in the parser of `serve`.
_OF_SERVE = {
    "n_threads": "threads", "n_parallel": "parallel", "aliases": "alias",
    "embedding": "embeddings", "pooling_type": "pooling", "cors_origins": "cors_origin",
    "send_timeout_s": "send_timeout", "has_slots": "slots",
}  # fmt: skip
_FILE = "[`--config`](server-models.md)"
# The equivalents in `serve` of fields whose names are neither its options nor its keywords.
BY_HAND: Mapping[str, str] = {
    "n_ctx": "`-c`, the context of each request: `-c 8192 -np 4` is `-c 2048 --parallel 4`",
    "kv_unified": "not needed: each request has all of `-c`",
    "cache_mib": f"`prefix_cache_bytes` in {_FILE}",
    "spec_types": "`-d mtp`, `-d prompt-lookup`, or `-d` and the draft's file",
    "lora": f"`--lora`, one adapter; several are `adapters` in {_FILE}",
    "lora_scaled": f"`adapters` with a `scale` in {_FILE}",
    "load_mode": f"`use_mmap` and `use_mlock` in {_FILE}",
    "rope_scale": f"`rope_freq_scale` in {_FILE}: 1 divided by it",
    "kv_overrides": f"`kv_overrides` in {_FILE}",
    "max_tokens": "`max_tokens` of a request; `--max-tokens` bounds all requests",
    "seed": "`seed` of a request",
    "escape": "not needed: `stop` of a request has the escapes of JSON",
    "json_schema": "`response_format` of a request",
    "chat_template": f"`chat_format` or `chat_template` in {_FILE}",
    "chat_template_text": f"`chat_template` in {_FILE}",
    "chat_template_kwargs": "`chat_template_kwargs` of a request",
    "reasoning_format": "`reasoning_format` of a request",
    "reasoning": '`reasoning_effort` of a request: `"none"` is off',
    "reasoning_effort": "`reasoning_effort` of a request",
    "reasoning_budget": "`thinking_token_budget` of a request",
    "rerank": "`--embeddings --pooling rank`",
    "api_keys": "`--api-key-file`, or `PYLLAMA_SPEC_API_KEY` in the environment",
    "ping_s": "default here: a comment after 15 silent seconds",
    "has_metrics": "default here; `--no-metrics` switches it off",
    "has_page": "default here; `--no-page` switches it off",
    "is_silent": "`-q`: no line for each request",
    "verbosity": "`-q`: no line for each request",
    "log_file": "the log is on stderr: `2>>FILE`, or systemd's journal",
}
# Flags that differ slightly from llama-server's.
_APART = {
    "n_ctx": "the same: divided by `-np`, unless `-kvu` is given",
    "n_parallel": "the same; without it four, each with all of `-c`",
    "spec_types": "the same; `ngram-...` is prompt lookup",
    "api_keys": "the same, with a warning",
    "cors_origins": "the same; an origin has a scheme",
    "n_gpu_layers": "the same; without it none",
    "send_timeout_s": "the same, of a client that reads slowly",
    "cache_mib": "the same; without it 2 GiB, and at most a quarter of the memory",
}
_OWN = {
    "--help": (SAME, "`--help`"), "--version": (SAME, "`pyllama-spec --version`"),
}  # fmt: skip
_HEAD = """# From llama-server, flag by flag
`python -m tools.docs.llama_server_flags` makes this page from the source of the pinned llama-server and from the table of `pyllama-spec-llama-server`. What differs in practice, with an example, is on [From llama-server](moving-server.md); the server under its own options is [An OpenAI server](server.md).

- `pyllama-spec-llama-server` takes llama-server's command line as it is. **The same**: the flag does what it does there, and so does its variable of the environment. **No effect**: it is accepted, and stderr says why it changes nothing. **Refused**: the program ends with the reason.
- `pyllama-spec serve` has options of its own, in the last column. "Of a request" is a field that clients send. A key "in `--config`" is one of a [file of models](server-models.md#the-file), and a file may list a single model.

Under `pyllama-spec-llama-server` too, `--ctx_size` is `--ctx-size`, and a variable counts where its flag is not given. Variables of flags without effect or refused, and llama-server's `config.ini`, are not read.

**Defaults that differ**: `-ngl` is 0 here, and `auto` there. `-c` is 4,096 tokens for each request, and the model's own length there. `-b` is 512 (2,048), `-cram` 2 GiB (8 GiB), `--timeout` 60 seconds (3,600), `--sse-ping-interval` 15 (30).
"""  # noqa: E501 - each paragraph of the page is one line


class Row(NamedTuple):
    """A row of the page: the flag's names, and its treatment by the two commands."""

    names: str
    theirs: str
    ours: str


@cache
def options_of_serve() -> dict[str, tuple[str, ...]]:
    """The options of `serve`, by the names under which the parser keeps their values."""
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    serve.add_serve(commands)
    return {one.dest: tuple(one.option_strings) for one in commands.choices["serve"]._actions}


def of_serve(field: str) -> str:
    """The option of `serve` for a field of the table.

    Raises:
        KeyError: no table has the field.

    """
    if field in BY_HAND:
        return BY_HAND[field]
    options = options_of_serve().get(_OF_SERVE.get(field, field))
    if options:
        return ", ".join(f"`{one}`" for one in options)
    if field in OF_REQUESTS:
        return f"`{field}` of a request"
    if field in OF_LLAMA:
        return f"`{field}` in {_FILE}"
    raise KeyError(f"{field}: say in BY_HAND of {__name__} what `serve` has for it")


def _outcome(name: str) -> tuple[str, str]:
    """The treatment of a name by the llama-server command and by `serve`."""
    if name in REFUSED:
        return REFUSED_WORD, _FLAG.sub(r"`\g<0>`", REFUSED[name])
    if name in IDLE:
        why = _FLAG.sub(r"`\g<0>`", IDLE[name][1])
        return IDLE_WORD, f"default here: {why}" if "always" in why else why
    field = BY_NAME[name].field
    return _APART.get(field, SAME), of_serve(field)


def rows_of(flag: TheirFlag) -> Iterator[Row]:
    """The rows of a flag: one for each treatment that its names have.

    Raises:
        KeyError: a name is in no table.

    """
    own = next((_OWN[name] for name in flag.names if name in _OWN), None)
    by_outcome: dict[tuple[str, str], list[str]] = {}
    for name in flag.all_names:
        by_outcome.setdefault(own or _outcome(name), []).append(f"`{name}`")
    variables = {BY_NAME[name].variable for name in flag.all_names if name in BY_NAME}
    variable = f"<br>`{flag.variable}`" if flag.variable in variables - {""} else ""
    for (theirs, ours), names in by_outcome.items():
        told = theirs
        if flag.is_removed:
            told = f"{theirs.replace(SAME, 'taken')}; llama-server has removed it"
        yield Row(f"{', '.join(names)}{variable}", told, ours)


def page() -> str:
    """The whole page."""
    flags = their_flags(SOURCE.read_text(encoding="utf-8"))
    rows = {key: [r for one in flags if one.group == key for r in rows_of(one)] for key in _GROUPS}
    counts = Counter(row.theirs.partition(";")[0] for some in rows.values() for row in some)
    n_idle, n_refused = counts[IDLE_WORD], counts[REFUSED_WORD]
    n_names = sum(len(one.all_names) for one in flags)
    about = (
        f"llama-server of the pin has {len(flags)} options of {n_names} names. Of the rows below, "
        f"{counts.total() - n_idle - n_refused} are the same, {n_idle} have no effect and "
        f"{n_refused} are refused. Flags of older llama-servers are taken too: {_older(flags)}. "
        "`--allowed-hosts` is an option of both commands here, and none of llama-server."
    )
    parts = [_HEAD, about]
    for key, title in _GROUPS.items():
        parts += [
            f"\n## {title}", '<div class="options flags" markdown>\n',
            "| llama-server | `pyllama-spec-llama-server` | `pyllama-spec serve`, or why not |",
            "|---|---|---|",
            *(f"| {' | '.join(row)} |" for row in rows[key]), "\n</div>",
        ]  # fmt: skip
    return "\n".join(parts) + "\n"


def _older(flags: list[TheirFlag]) -> str:
    """Names that are accepted here but that the pinned llama-server lacks."""
    theirs = {name for flag in flags for name in flag.all_names}
    names = [name for name in BY_NAME if name not in theirs and name != "--allowed-hosts"]
    return ", ".join(f"`{name}`" for name in sorted(names))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
