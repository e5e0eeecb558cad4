"""A member's own part: its way into a generation, what it has heard, what it still has to send. Pure."""
