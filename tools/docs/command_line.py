"""Writes docs/command-line.md: every command with its options and their defaults.

``python -m tools.docs.command_line`` writes the page. tests/docs compares it with the parsers. Only
the start of the page is written by hand.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from pyllama_spec.cli.entry import command_parser

PAGE = Path(__file__).resolve().parents[2] / "docs" / "command-line.md"
_HEAD = """# Command line
`python -m tools.docs.command_line` makes this page from the parsers of the commands.

```bash
pyllama-spec --version
pyllama-spec generate --help
```

On a terminal, the colour of an accepted token shows who drafted it. Green is the model, cyan a copy of the text itself, magenta a copy of an earlier text (`suffix`), and yellow a token that a grammar forces. The target's own tokens have no colour. `--json` has the same in `token_sources`. The figures follow on stderr. With `NO_COLOR=1`, in a pipe or in a file the text has no colours. Exit codes: 0 done, 1 a failure with one line that says why and what to do, 2 bad usage, 130 stopped by Ctrl-C.

## A prompts file (JSONL)
A line of a `--prompts` file is a prompt or a chat, as JSON. A chat may have `tools`, a list of functions as in chat completions. `bench` needs `id` and `category`, `train` neither:

```json
{"id": "a", "category": "b", "prompt": "..."}
{"id": "c", "category": "b", "messages": [{"role": "user", "content": "..."}]}
```
"""  # noqa: E501 - each paragraph of the page is one line


def _commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The parsers of the commands below this one, each with its help text."""
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            continue
        about = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, command in action.choices.items():
            below = list(_commands(command))
            yield from below or [(about.get(name, ""), command)]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "/").replace("<", "&lt;")


def _value(action: argparse.Action) -> str:
    """The metavar of an option; "" for a flag, or if choices are listed."""
    if action.nargs == 0 or (action.choices is not None and action.metavar is None):
        return ""
    return str(action.metavar or action.dest.upper())


def _default(action: argparse.Action, help_text: str) -> str:
    """The default, as the help text states it if it does."""
    if action.required:
        return "required"
    if help_text.endswith("]"):
        return help_text[help_text.rindex("[") + 1 : -1]
    if not action.option_strings or action.default in (None, argparse.SUPPRESS, [], ()):
        return ""
    return "off" if action.nargs == 0 and action.default is False else str(action.default)


def _row(action: argparse.Action, *, is_one_of: bool = False) -> str:
    help_text = _cell((action.help or "") % {**vars(action), "prog": "pyllama-spec"})
    default = "one of these" if is_one_of else _default(action, help_text)
    if help_text.endswith("]"):
        help_text = help_text[: help_text.rindex("[")].rstrip()
    if action.choices is not None and action.nargs != 0:
        choices = ", ".join(f"`{one}`" for one in action.choices)
        help_text = f"{help_text} ({choices})" if help_text else choices
    *others, last = action.option_strings or [""]
    names = [*others, f"{last} {_value(action)}".strip()]
    shown = ", ".join(f"`{name}`" for name in names)
    return f"| {_cell(shown)} | {help_text} | {default} |"


def _section(help_text: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"\n## {parser.prog}"
    about = parser.description or help_text
    yield f"{about[:1].upper()}{about[1:]}{'' if about.endswith('.') else '.'}\n"
    if parser.epilog:
        yield f"{parser.epilog}\n"
    one_of = {
        action
        for group in parser._mutually_exclusive_groups
        if group.required
        for action in group._group_actions
    }
    for group in parser._action_groups:
        actions = [
            one for one in group._group_actions
            if not isinstance(one, argparse._HelpAction) and one.help is not argparse.SUPPRESS
        ]  # fmt: skip
        if not actions:
            continue
        if group.title not in ("options", "positional arguments"):
            yield f"**{str(group.title).capitalize()}**\n"
        yield '<div class="options" markdown>\n'
        yield "| option | what | default |\n|---|---|---|"
        yield from (_row(action, is_one_of=action in one_of) for action in actions)
        yield "\n</div>\n"


def page() -> str:
    """The whole page."""
    parts = [_HEAD.rstrip()]
    for help_text, parser in _commands(command_parser()):
        parts += _section(help_text, parser)
    return "\n".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
