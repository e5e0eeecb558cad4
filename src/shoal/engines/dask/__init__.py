"""Nodes that are the workers of a Dask cluster: which of them have agents, and the provider of these."""
