"""Whole checkpoints: what makes parts one, finding them, reading them back."""
