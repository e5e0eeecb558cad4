"""Forming the next generation: who is in it, which workers it waits for, which are cut off. Pure."""
