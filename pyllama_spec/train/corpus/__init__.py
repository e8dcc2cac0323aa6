"""The text to train on: tasks, the target's answers, and what the target computed for them."""
