"""The commands. This room alone reads the environment and composes the others."""
