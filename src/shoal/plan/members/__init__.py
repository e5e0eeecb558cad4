"""A simulated job around the live membership, and what must be true of it."""
