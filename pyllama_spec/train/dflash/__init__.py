"""DFlash drafts: their shape, their objective, their first weights and their file."""
