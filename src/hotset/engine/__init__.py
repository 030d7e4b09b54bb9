"""Inference engines: one interface, one file per engine, and the supervision of their processes."""
