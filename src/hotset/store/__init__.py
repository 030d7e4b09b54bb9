"""The Python side of the expert store."""
