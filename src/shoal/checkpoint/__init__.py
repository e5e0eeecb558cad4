"""State as plain trees of numbers, strings and tensors, and its copying. See `docs/packages/checkpoint.md`."""
