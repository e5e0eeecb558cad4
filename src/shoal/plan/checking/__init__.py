"""What goes wrong on purpose in a simulated cluster, and what must be true all the same."""
