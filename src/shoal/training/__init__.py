"""Run: what a user's script sees. See `docs/packages/training.md`."""
