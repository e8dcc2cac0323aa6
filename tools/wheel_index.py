"""Writes pages by which pip finds wheels, one index for each backend (PEP 503).

    python -m tools.wheel_index DIR WHEEL ... [--url URL]

A wheel's local version names its backend: 0.1.0+cu130 goes to DIR/cu130, and 0.1.0 to DIR/cpu. Each
link has the file's SHA-256, which pip checks. The wheels are copied beside their page; with --url
the page links to them under that address. pip takes 0.1.0+cu130 before 0.1.0:

    pip install pyllama_spec --extra-index-url URL-OF-DIR/cu130
"""

from __future__ import annotations

import argparse
import hashlib
import html
import re
import shutil
import zipfile
from collections import defaultdict
from email.parser import BytesParser
from pathlib import Path
from urllib.parse import quote

_PAGE = "<!DOCTYPE html>\n<html><body>\n{}\n</body></html>\n"


def write_index(out: Path, wheels: list[Path], url: str = "") -> None:
    """Writes the pages of these wheels, and of no others."""
    links: dict[Path, list[str]] = defaultdict(list)
    for wheel in sorted(wheels):
        name, version = wheel.name.split("-")[:2]
        project = out / (version.partition("+")[2] or "cpu") / re.sub(r"[-_.]+", "-", name).lower()
        project.mkdir(parents=True, exist_ok=True)
        if not url:
            shutil.copy(wheel, project)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        address = f"{url.rstrip('/')}/{quote(wheel.name)}" if url else quote(wheel.name)
        python = html.escape(_requires_python(wheel))
        links[project].append(
            f'<a href="{address}#sha256={digest}" data-requires-python="{python}">{wheel.name}</a>'
        )
    for project, lines in links.items():
        (project / "index.html").write_text(_PAGE.format("<br>\n".join(lines)), encoding="utf-8")
        root = f'<a href="{project.name}/">{project.name}</a>'
        (project.parent / "index.html").write_text(_PAGE.format(root), encoding="utf-8")


def _requires_python(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        return BytesParser().parsebytes(archive.read(name))["Requires-Python"] or ""


def main() -> int:
    """Writes the pages that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, metavar="DIR")
    parser.add_argument("wheels", type=Path, nargs="+", metavar="WHEEL")
    parser.add_argument("--url", default="", help="where the wheels are, as a release's files")
    args = parser.parse_args()
    write_index(args.out, args.wheels, args.url)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
