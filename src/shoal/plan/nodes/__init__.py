"""The processes of a simulated cluster: coordinator, launcher and workers with what they train."""
