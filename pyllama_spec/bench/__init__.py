"""The benchmark: plain and speculative decoding side by side, with the causes of the figures."""

from pyllama_spec.bench.config import BenchConfig, load_prompts
from pyllama_spec.bench.figures import BenchResult, PromptResult
from pyllama_spec.bench.harness import run
from pyllama_spec.bench.plot import check_plot, plot
from pyllama_spec.bench.report import table, to_json
from pyllama_spec.chat.prompt_file import Prompt

__all__ = [
    "BenchConfig",
    "BenchResult",
    "Prompt",
    "PromptResult",
    "check_plot",
    "load_prompts",
    "plot",
    "run",
    "table",
    "to_json",
]
