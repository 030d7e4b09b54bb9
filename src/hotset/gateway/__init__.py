"""Every model behind one address: names, scheduling, relaying."""
