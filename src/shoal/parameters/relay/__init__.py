"""What workers say to each other through the home server."""
