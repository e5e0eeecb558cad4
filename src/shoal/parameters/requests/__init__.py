"""What a worker asks of servers, and what it keeps for that."""
