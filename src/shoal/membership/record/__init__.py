"""What the coordinator writes down: decisions, events, metrics."""
