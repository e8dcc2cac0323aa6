"""Tests on a device beside the CPU: `make test-gpu`, or `make test-vulkan` with one of software."""
