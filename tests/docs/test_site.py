"""The site's treatment of links out of docs/; `make docs-build` checks in CI that it builds."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from pyllama_spec import Llama
from tests.docs.blocks import ROOT
from tools.docs.site_hooks import (
    as_page,
    linked,
    place_on_site,
    target_of,
)


@pytest.mark.parametrize(
    ("link", "source", "target"),
    [
        ("../examples/drop_in.py", "docs/moving.md", "examples/drop_in.py"),
        ("../examples/drafts", "docs/start.md", "examples/drafts/README.md"),
        ("../../outside.py", "docs/moving.md", None),
    ],
)
def test_where_a_link_leads(link: str, source: str, target: str | None) -> None:
    assert target_of(link, source) == target


def test_what_is_taken_in() -> None:
    text = "[a](../examples/drop_in.py#x)\n```text\n[b](../README.md)\n```\n[c](train.md)"
    assert list(linked(text, "docs/moving.md")) == ["examples/drop_in.py"]
    assert place_on_site("examples/drop_in.py") == "repository/examples/drop_in.py.md"
    assert place_on_site("docs/api/llama.md") == "api/llama.md"
    assert "from pyllama_spec" in as_page("examples/drop_in.py")


def anchors_of(path: Path) -> set[str]:
    """The anchors of a page's headings, as the site and GitHub make them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    plain = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings]
    return {re.sub(r"\s", "-", heading) for heading in plain}


@pytest.mark.parametrize(
    "source", ["README.md", "CONTRIBUTING.md", "examples/drafts/README.md", "CHANGELOG.md"]
)
def test_links_of_pages_that_are_not_of_the_site(source: str) -> None:
    """The links of pages outside docs/ are valid; mkdocs checks those in docs/."""
    text = (ROOT / source).read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:|#)([^()\s#]+)(?:#([^()\s]*))?\)", text)
    assert links
    for link, anchor in links:
        path = target_of(link, source)
        assert path is not None, f"{source} links to {link}, which is not there"
        if anchor and not anchor.endswith("-mode-only"):  # a picture for one colour scheme
            assert anchor in anchors_of(ROOT / path), f"{source}: {path} has no #{anchor}"


def test_the_reference_has_each_call_of_llama() -> None:
    page, _, _ = (ROOT / "docs/api/llama.md").read_text(encoding="utf-8").partition("The keywords")
    listed = re.findall(r"^ {8}- (\w+)$", page, re.MULTILINE)
    public = {name: inspect.getattr_static(Llama, name) for name in dir(Llama) if name[0] != "_"}
    calls = (property, staticmethod, classmethod)
    assert sorted(listed) == sorted(
        name for name, one in public.items() if isinstance(one, calls) or inspect.isfunction(one)
    )
