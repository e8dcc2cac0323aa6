"""Training drafts: an EAGLE-3 head for any GGUF target, from the target's own text."""

from pyllama_spec.train.config import CorpusConfig
from pyllama_spec.train.eagle3.config import Eagle3TrainConfig, FitConfig, HeadConfig
from pyllama_spec.train.eagle3.door import train_eagle3
from pyllama_spec.train.errors import CheckpointError, DivergedError, TrainError

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
