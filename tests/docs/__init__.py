"""README and docs/: every block of code runs, and pages that programs write are up to date."""
