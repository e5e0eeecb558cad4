"""A training step, against DDP."""
