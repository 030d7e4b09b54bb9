"""What the gateway adds between a client and an engine."""
