"""Synthetic GGUF files: tiny models of every family, realistic sizes, sparse full-scale files."""
