"""DFlash drafts: shape, objective, initial weights and file."""
