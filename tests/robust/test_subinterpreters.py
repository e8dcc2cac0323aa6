"""In a second interpreter of the same process, the package works or says that it cannot."""

from __future__ import annotations

from .test_exit import python
from .tools import tiny

_CODE = """
import sys
try:
    import {module} as interpreters
except ImportError:
    interpreters = None
inner = '''
try:
    from pyllama_spec import Llama
    with Llama({path!r}, n_ctx=64, n_threads=1) as llm:
        llm.create_completion([1, 2, 3], max_tokens=2)
    print("works")
except ImportError as error:
    print("refused")
except Exception as error:
    print("raised", type(error).__name__)
'''
from pyllama_spec import Llama
llm = Llama({path!r}, n_ctx=64, n_threads=1)
number = interpreters.create()
interpreters.run_string(number, inner)
interpreters.destroy(number)
print(llm.create_completion([1, 2, 3], max_tokens=2)["usage"]["completion_tokens"])
"""


def test_a_second_interpreter() -> None:
    import sys

    module = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
    done = python("-W", "ignore", "-c", _CODE.format(module=module, path=str(tiny())))
    assert done.returncode == 0, done.stderr[-2000:]
    said, n = done.stdout.split("\n")[:2]
    assert said in ("works", "refused")
    assert n == "2"
