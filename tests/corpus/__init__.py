"""The text that training learns from, without PyTorch."""
