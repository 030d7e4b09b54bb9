"""Pure decisions: numbers in, decisions out. No I/O, no environment, no clock, no subprocess."""
