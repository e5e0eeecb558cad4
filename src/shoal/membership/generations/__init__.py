"""Forming the next generation: who is in it, whom it waits for, who is cut off. Pure."""
