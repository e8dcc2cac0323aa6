"""Names of llama-cpp-python missing in pyllama_spec: the error says where to find them."""

from __future__ import annotations

import pytest

import pyllama_spec


def test_the_error_says_where_a_name_is() -> None:
    for name, is_theirs in (("LlamaGrammar", True), ("llama_chat_format", True), ("x", False)):
        with pytest.raises(AttributeError) as caught:
            getattr(pyllama_spec, name)
        assert ("pyllama_spec.llama_cpp" in str(caught.value)) == is_theirs
        # Programs that look before they use it go on.
        assert not hasattr(pyllama_spec, name)
        with pytest.raises(ImportError):
            exec(f"from pyllama_spec import {name}")
