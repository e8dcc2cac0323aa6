"""DFlash, DFlash2 and DSpark checkpoints -> GGUF (docs/convert.md)."""
