"""Loops over data: where positions come from, how each step is begun and settled, and where all workers meet."""
