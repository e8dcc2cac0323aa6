"""The text to train on: tasks, the target's answers, and their features."""
