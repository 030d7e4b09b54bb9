"""GGUF files: the bounded header reader, what a file is, and the synthetic writer."""
