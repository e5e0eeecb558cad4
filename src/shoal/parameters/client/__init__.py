"""A worker's side: what it asks of servers, the connections it asks on, and the memory it keeps for that."""
