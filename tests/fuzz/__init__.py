"""Random hostile input: files, arguments, texts; csrc/fuzz has the guided targets."""
