"""Hooks of mkdocs: pages that programs make, and what docs/ links to in the repository.

The pages of made() are in no commit. A page may say `[text](../examples/drop_in.py)`:
the link works where the repository is read, and on the site it leads to a page with the file in it.
Drawings of docs/assets are put into the page itself, so that their colours follow the reader's
choice of light and dark.
"""

from __future__ import annotations

import logging
import posixpath
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
DOCS = "docs"
# Where files from outside of docs/ lie on the site.
TAKEN_IN = "repository"
# What a search counts a page for: pages that explain come before those that list.
_BOOSTS: tuple[tuple[str, float], ...] = (
    (f"{TAKEN_IN}/", 0.2), ("measurements.md", 0.2), ("api/", 0.3), ("llama-server-flags.md", 0.6),
    ("parity-table.md", 0.2), ("results-by-prompt.md", 0.2),
)  # fmt: skip
# Words that readers search for where a page says another one; the search reads them as tags.
SEARCHED_AS: Mapping[str, tuple[str, ...]] = {
    "start.md": ("huggingface", "quickstart"),
    "moving.md": ("migrate", "migration", "replacement"),
    "limits.md": ("vision", "windows"),
    "embeddings.md": ("rag", "retrieval"),
    "schemas.md": ("structured", "pydantic"),
    "parallel.md": ("concurrency", "concurrent", "continuous"),
    "server-service.md": ("logging", "deploy", "deployment", "prometheus"),
    "train.md": ("finetune", "finetuning"),
    "suffix.md": ("ngram",),
    "troubleshooting.md": ("faq", "crash", "problems"),
}
_LINK = re.compile(r"(!?\[[^\[\]]*\]\()([^()\s#]+)(#[^()\s]*)?(\))")
_DRAWING = re.compile(r"^!\[[^\]]*\]\((assets/[\w-]+\.svg)\)$", re.MULTILINE)
_FENCE = re.compile(r"^( *)(`{3,})[^\n]*\n.*?^\1\2`* *$", re.MULTILINE | re.DOTALL)
# A list or a table right behind another line: GitHub begins it there, Python-Markdown does not.
_BEGINS = re.compile(r"^(?P<before>(?![-*|#>]|\d+\. |\s).+)\n(?=- |\* |1\. |\|)", re.MULTILINE)
_IMAGES = (".png", ".svg", ".jpg")
# Browsers do not load a canonical link, nor those to the pages before and after.
_FROM_ELSEWHERE = re.compile(
    r"<(?:script|img|iframe|link(?! rel=\"(?:canonical|prev|next)\"))\b[^>]*"
    r"\s(?:src|href)=\"?(?:https?:)?//[^>]*>"
)
# mkdocs counts what is logged below it: with --strict a warning ends the build.
_LOG = logging.getLogger("mkdocs.plugins.pyllama_spec")


def made() -> dict[str, str]:
    """The pages that are made when the site is built: their places and texts."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))  # mkdocs reads this file by its path
    from tools.docs import beside, llama_server_flags, results

    return {
        "llama-server-flags.md": llama_server_flags.page(),
        "parity-table.md": beside.calls_page(),
        "results-by-prompt.md": results.page(),
    }


def target_of(link: str, source: str) -> str | None:
    """The file of the repository that a link of the file `source` leads to; None for none."""
    if "://" in link or link.startswith(("/", "mailto:")):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    if (ROOT / path).is_dir():
        path = posixpath.join(path, "README.md")
    return path if not path.startswith("..") and (ROOT / path).is_file() else None


def place_on_site(path: str) -> str:
    """The path of a file of the repository among the site's sources."""
    if path.startswith(f"{DOCS}/"):
        return path.removeprefix(f"{DOCS}/")
    is_as_it_is = path.endswith((".md", *_IMAGES))
    return f"{TAKEN_IN}/{path}" if is_as_it_is else f"{TAKEN_IN}/{path}.md"


def linked(text: str, source: str) -> Iterator[str]:
    """The files outside of docs/ that a page links to."""
    for match in _LINK.finditer(_FENCE.sub("", text)):
        path = target_of(match[2], source)
        if path is not None and not path.startswith(f"{DOCS}/"):
            yield path


def as_page(path: str) -> str:
    """The Markdown of a page that shows a file."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".md"):
        return text
    language = {".py": "python", ".cpp": "cpp", ".h": "cpp"}.get(Path(path).suffix, "text")
    return f"# {Path(path).name}\n\n`{path}`\n\n````{language}\n{text}````\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds what is made, what is linked to, and what that links to."""
    from mkdocs.structure.files import File

    for place, text in made().items():
        files.append(File.generated(config, place, content=text))
    pages = [file for file in files if file.src_uri.endswith(".md")]
    waiting = [(file.content_string, f"{DOCS}/{file.src_uri}") for file in pages]
    linked_files: set[str] = set()
    while waiting:
        text, source = waiting.pop()
        for path in linked(text, source):
            if path in linked_files:
                continue
            linked_files.add(path)
            place = place_on_site(path)
            if path.endswith(_IMAGES):
                files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
                continue
            content = as_page(path)
            files.append(File.generated(config, place, content=content))
            if path.endswith(".md"):
                waiting.append((content, path))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leads links to where the files lie on the site, and puts drawings in."""
    del config
    here = page.file.src_uri
    is_taken_in = here.startswith(f"{TAKEN_IN}/")
    boost = next((boost for begin, boost in _BOOSTS if here.startswith(begin)), None)
    if boost is not None:
        page.meta["search"] = {"boost": boost}
    if here in SEARCHED_AS:
        page.meta["tags"] = list(SEARCHED_AS[here])
    source = here.removeprefix(f"{TAKEN_IN}/") if is_taken_in else f"{DOCS}/{here}"

    def moved(match: re.Match[str]) -> str:
        path = target_of(match[2], source)
        if path is None or files.get_file_from_path(place_on_site(path)) is None:
            return match[0]
        place = posixpath.relpath(place_on_site(path), posixpath.dirname(here) or ".")
        return f"{match[1]}{place}{match[3] or ''}{match[4]}"

    def drawn(match: re.Match[str]) -> str:
        svg = (ROOT / DOCS / match[1]).read_text(encoding="utf-8")
        return f'<div class="drawing">{svg[svg.index("<svg") :].strip()}</div>'

    parts, last = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [_LINK.sub(moved, begun(markdown[last : fence.start()])), f"{fence[0]}\n"]
        last = fence.end()
    text = "".join([*parts, _LINK.sub(moved, begun(markdown[last:]))])
    return _DRAWING.sub(drawn, text)


def begun(text: str) -> str:
    """Text without code, with an empty line before each list and table."""
    return _BEGINS.sub(r"\g<before>\n\n", text)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Warns of what a reader's browser would load from elsewhere."""
    del config
    for address in _FROM_ELSEWHERE.findall(output):
        _LOG.warning("%s loads from elsewhere: %s", page.file.src_uri, address)
    return output
