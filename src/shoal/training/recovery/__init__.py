"""After a failure: what a void step gives back, the next generation, and one state for all its members."""
