"""The text for training, without PyTorch."""
