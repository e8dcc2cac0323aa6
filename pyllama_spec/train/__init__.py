"""Training drafts for any GGUF target, from the target's own text: EAGLE-3, DFlash, MTP heads."""

from pyllama_spec.train.api import train_dflash, train_eagle3, train_from_use, train_mtp
from pyllama_spec.train.config import (
    CorpusConfig,
    DFlashFitConfig,
    DFlashHeadConfig,
    DFlashTrainConfig,
    Eagle3TrainConfig,
    FitConfig,
    HeadConfig,
    MtpFitConfig,
    MtpTrainConfig,
    UseConfig,
)
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
    "MtpFitConfig",
    "MtpTrainConfig",
    "TrainError",
    "UseConfig",
    "train_dflash",
    "train_eagle3",
    "train_from_use",
    "train_mtp",
]
