"""A real small model with experts, made of a dense one (docs/lab.md)."""
