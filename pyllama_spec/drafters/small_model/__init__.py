"""A small ordinary model that drafts for a larger one (docs/draft-models.md)."""

from pyllama_spec.drafters.small_model.drafter import SmallModel, open_small_model

__all__ = ["SmallModel", "open_small_model"]
