"""Nodes that Slurm allots: what an allocation has, asking for one, and the provider of agents."""
