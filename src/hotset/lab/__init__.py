"""The laboratory: routing recorded and replayed, caches simulated, a small model with experts."""
