"""Names of llama-cpp-python missing in pyllama_spec: the error says where to find them."""

from __future__ import annotations

import subprocess
import sys

import pytest

import pyllama_spec
from pyllama_spec import llama_cpp

THEIRS = sorted(set(llama_cpp.__all__) - set(pyllama_spec.__all__) - {"install", "uninstall"})
NAMES = [*THEIRS, "CreateCompletionResponse", "ChatCompletionRequestMessage", "llama_chat_format"]


@pytest.mark.parametrize("name", NAMES)
def test_the_error_says_where_a_name_is(name: str) -> None:
    hint = f"from pyllama_spec.llama_cpp import {name}$"
    with pytest.raises(ImportError, match=hint) as caught:
        exec(f"from pyllama_spec import Llama, {name}")
    assert (caught.value.name, caught.value.path) == ("pyllama_spec", pyllama_spec.__file__)
    with pytest.raises(AttributeError, match=hint):
        getattr(pyllama_spec, name)
    # Programs that look before they use it go on.
    assert not hasattr(pyllama_spec, name)
    assert getattr(pyllama_spec, name, None) is None
    exec(f"from pyllama_spec.llama_cpp import {name}")


@pytest.mark.parametrize(
    "name", ["LlamaGramar", "Nothing", "llama_nothing", "x", "_Hidden", "open"]
)
def test_a_name_that_nobody_has_is_an_error_without_a_hint(name: str) -> None:
    with pytest.raises(ImportError) as caught:
        exec(f"from pyllama_spec import {name}")
    assert "llama_cpp" not in str(caught.value)
    with pytest.raises(AttributeError, match=f"no attribute '{name}'$"):
        getattr(pyllama_spec, name)


def test_a_name_of_ours_imports_none_of_theirs() -> None:
    code = "import sys, pyllama_spec; pyllama_spec.Eagle3; hasattr(pyllama_spec, 'x'); "
    code += "print('pyllama_spec.llama_cpp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
