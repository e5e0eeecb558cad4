"""A server: its process, its connections to the other servers and to the keeper, and each job on it."""
