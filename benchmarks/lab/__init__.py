"""Policies decided by evidence, and the quality of the converted model."""
