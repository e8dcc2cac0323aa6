"""The server, on real sockets with real models."""
