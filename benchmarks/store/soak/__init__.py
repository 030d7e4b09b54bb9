"""The store under mixed requests for a long time: memory, growth, errors, changed answers."""
