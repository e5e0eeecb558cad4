"""The worker's side: its requests to servers, its connections, and the memory that it needs for both."""
