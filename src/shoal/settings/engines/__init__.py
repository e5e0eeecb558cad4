"""What engines declare without being loaded: names, settings with their checks, what they need; which there are."""
