"""Training drafts for any GGUF target, from the target's own text: EAGLE-3, DFlash, MTP heads."""

from pyllama_spec.lazy_imports import public_names
from pyllama_spec.train.api import train_dflash, train_eagle3, train_from_use, train_mtp
from pyllama_spec.train.config import CorpusConfig, UseConfig
from pyllama_spec.train.dflash.config import DFlashFitConfig, DFlashHeadConfig, DFlashTrainConfig
from pyllama_spec.train.eagle3.config import Eagle3TrainConfig, FitConfig, HeadConfig
from pyllama_spec.train.errors import CheckpointError, DivergedError, TrainError
from pyllama_spec.train.mtp.config import MtpFitConfig, MtpTrainConfig

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
    "MtpFitConfig",
    "MtpTrainConfig",
    "TrainError",
    "UseConfig",
    "train_dflash",
    "train_eagle3",
    "train_from_use",
    "train_mtp",
]

__dir__ = public_names(__name__)
