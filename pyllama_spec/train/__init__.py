"""Training drafts for any GGUF target, from the target's own text: EAGLE-3 heads and DFlash."""

from pyllama_spec.lazy_imports import public_names
from pyllama_spec.train.api import train_dflash, train_eagle3, train_from_use
from pyllama_spec.train.config import CorpusConfig, UseConfig
from pyllama_spec.train.dflash.config import DFlashFitConfig, DFlashHeadConfig, DFlashTrainConfig
from pyllama_spec.train.eagle3.config import Eagle3TrainConfig, FitConfig, HeadConfig
from pyllama_spec.train.errors import CheckpointError, DivergedError, TrainError

__all__ = [
    "CheckpointError",
    "CorpusConfig",
    "DFlashFitConfig",
    "DFlashHeadConfig",
    "DFlashTrainConfig",
    "DivergedError",
    "Eagle3TrainConfig",
    "FitConfig",
    "HeadConfig",
    "TrainError",
    "UseConfig",
    "train_dflash",
    "train_eagle3",
    "train_from_use",
]

__dir__ = public_names(__name__)
