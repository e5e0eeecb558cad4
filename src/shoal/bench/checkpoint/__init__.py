"""What a checkpoint costs training."""
