"""What every kind of draft looks at before it computes: the files, the target, the packages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyllama_spec.engine import Model, ModelInfo
from pyllama_spec.errors import ArgumentError
from pyllama_spec.files import why_no_output
from pyllama_spec.llama.loading import check_target
from pyllama_spec.train.config import RunConfig
from pyllama_spec.train.corpus.tasks import read_prompts
from pyllama_spec.train.errors import need
from pyllama_spec.train.progress import Reporter, SilentReporter
from pyllama_spec.train.run.lock import locked

if TYPE_CHECKING:
    from pyllama_spec.train.run.head import DraftShape
    from pyllama_spec.train.run.init_draft import Keys
    from pyllama_spec.train.run.kind import Kind
    from pyllama_spec.train.run.pipeline import TrainReport


@dataclass(frozen=True, slots=True)
class Opening:
    """A kind, once PyTorch is known to be there.

    Attributes:
        kind: of the draft.
        shape_of: reads the shape of an earlier draft; see read_init_draft().

    """

    kind: Kind[Any]
    shape_of: Callable[[Keys, int], DraftShape]


def run_training(
    config: RunConfig,
    reporter: Reporter | None,
    default_layers: Callable[[ModelInfo], tuple[int, ...]],
    opening: Callable[[], Opening],
) -> TrainReport:
    """Trains a draft of any kind; the doors of the kinds say what it does and raises.

    Args:
        config: of the run.
        reporter: is told how it goes; None for silence.
        default_layers: layer inputs to read where the configuration names none.
        opening: imports what needs PyTorch.

    """
    _check_files(config)
    with Model(config.target, n_gpu_layers=config.n_gpu_layers, devices=config.devices) as model:
        check_target(model)
        layers = config.head.target_layers or default_layers(model.info)
        if config.init is None:
            model.check_layer_inputs(layers)
        need("torch", "gguf")
        # With PyTorch, which is optional.
        from pyllama_spec.train.run.init_draft import read_init_draft
        from pyllama_spec.train.run.pipeline import Pipeline

        opened, init_draft = opening(), None
        kind = opened.kind
        if config.init is not None:
            init_draft = read_init_draft(config.init, model.info, kind.arch, opened.shape_of)
            layers = init_draft.shape.target_layers
            model.check_layer_inputs(layers)
        with locked(config.work_dir):
            told = reporter or SilentReporter()
            return Pipeline(kind, config, model, layers, told, init_draft).run()


def _check_files(config: RunConfig) -> None:
    if (why_not := why_no_output(config.out)) is not None:
        raise ArgumentError(why_not)
    if config.out.exists() and config.out.samefile(config.target):
        raise ArgumentError(f"{config.out} is the target itself; give another output")
    if config.corpus.prompts is not None:
        read_prompts(config.corpus.prompts)
