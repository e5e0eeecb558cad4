"""A member's own part: into a generation, what it has heard, what it still has to say. Pure."""
