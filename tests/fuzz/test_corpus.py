"""The seeds for libFuzzer are valid input of its targets."""

from pathlib import Path

import pytest

from pyllama_spec.engine import Model
from tests.fuzz.corpus import TARGETS, VOCABULARIES, write


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("corpus")
    write(out)
    return out


@pytest.mark.parametrize("name", [name for name, _, _ in VOCABULARIES])
def test_a_vocabulary_loads_and_cuts_text(folder: Path, name: str) -> None:
    with Model(folder / "models" / f"{name}.gguf", vocab_only=True) as model:
        assert model.vocab.tokenize("the cat")


def test_each_target_has_seeds(folder: Path) -> None:
    assert all(any((folder / target).iterdir()) for target in TARGETS)
