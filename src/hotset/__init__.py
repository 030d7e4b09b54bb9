"""hotset: large Mixture-of-Experts models on ordinary PCs."""

__version__ = "0.1.0"
