"""Where checkpoints are kept: the interface, and a store for each kind of place."""
