"""Nodes that are reached with the user's own ssh: the hosts file, and the provider of agents."""
