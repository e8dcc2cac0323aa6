"""Training drafts: an EAGLE-3 head for any GGUF target, from the target's own text."""

from pyllama_spec.train.config import CorpusConfig, Eagle3TrainConfig, FitConfig, HeadConfig
from pyllama_spec.train.errors import CheckpointError, DivergedError, TrainError
from pyllama_spec.train.run.train_eagle3 import train_eagle3

__all__ = [
    "CheckpointError",
    "CorpusConfig",
    "DivergedError",
    "Eagle3TrainConfig",
    "FitConfig",
    "HeadConfig",
    "TrainError",
    "train_eagle3",
]
