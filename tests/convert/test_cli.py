"""pyllama-spec convert: exit codes, one line on stderr, silence, and a file that works."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyllama_spec.cli.entry import main
from tests.convert.dflash_tools import make_draft, write_draft
from tests.convert.tools import gguf_tensors, make_head, write_head, write_target

Captured = pytest.CaptureFixture[str]


def run(tmp_path: Path, *more: str, layout: str = "specforge") -> int:
    """Converts the usual head."""
    folder = write_head(tmp_path / "draft", layout, make_head())
    target = write_target(tmp_path / "target.gguf")
    out = tmp_path / "out.gguf"
    return main(["convert", str(folder), "--target", str(target), "-o", str(out), *more])


def test_done(tmp_path: Path, capsys: Captured) -> None:
    """The same command recognises both kinds by their files."""
    assert run(tmp_path, "--type", "q8_0", "--layer-ids", "input") == 0
    assert gguf_tensors(tmp_path / "out.gguf")["fc.weight"][0] == "Q8_0"
    seen = capsys.readouterr()
    for part in ("out.gguf: EAGLE-3, ", "layer inputs 1, 3, 4 of the target", "15 tensors, Q8_0"):
        assert part in seen.out
    folder = write_draft(tmp_path / "dflash", "redhat", make_draft("dspark", reduced=True))
    target = write_target(tmp_path / "wide.gguf", embedding_length=32)
    words = ["convert", folder, "--target", target, "-o", tmp_path / "second.gguf"]
    assert main([str(word) for word in words]) == 0
    again = capsys.readouterr()
    assert "second.gguf: DSpark, " in again.out and "blocks of 7, 96 draft tokens" in again.out
    assert not seen.err + again.err, "no progress bar where there is no terminal"
