"""What a terminal shows of a running job."""
