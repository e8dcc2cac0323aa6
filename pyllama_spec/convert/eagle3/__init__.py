"""EAGLE-3 checkpoints -> GGUF (docs/eagle3.md)."""
