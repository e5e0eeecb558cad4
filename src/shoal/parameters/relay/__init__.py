"""What workers say to each other through the home server: who gets what (pure), and both sides of it."""
