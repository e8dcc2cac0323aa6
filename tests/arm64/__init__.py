"""What `make test-arm64` runs: our kernels by themselves, and the wheel in an emulated Python."""
