"""Hostile input at random: files, arguments, texts; csrc/fuzz has the guided targets."""
