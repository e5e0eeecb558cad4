"""Nodes of a Ray cluster: room there, the process that keeps it, and the provider of agents."""
