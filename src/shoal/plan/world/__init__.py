"""Virtual time, processes and a network that fails."""
