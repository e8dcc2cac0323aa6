"""The training text: tasks, the target's answers, and their features."""
