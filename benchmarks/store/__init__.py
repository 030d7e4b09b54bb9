"""The expert store against the stock engine, in turn, under a memory limit."""
