"""The benchmark: plain and speculative decoding side by side, with the causes of the figures."""

from pyllama_spec.bench.config import BenchConfig, load_prompts
from pyllama_spec.bench.figures import PromptResult
from pyllama_spec.bench.harness import run
from pyllama_spec.bench.peer import PeerError
from pyllama_spec.bench.plot import check_plot, plot
from pyllama_spec.bench.report import to_json
from pyllama_spec.bench.result import BenchResult
from pyllama_spec.bench.table import table
from pyllama_spec.chat.prompt_file import Prompt
from pyllama_spec.lazy_imports import public_names

__all__ = [
    "BenchConfig",
    "BenchResult",
    "PeerError",
    "Prompt",
    "PromptResult",
    "check_plot",
    "load_prompts",
    "plot",
    "run",
    "table",
    "to_json",
]

__dir__ = public_names(__name__)
