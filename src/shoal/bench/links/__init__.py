"""Latency and bandwidth between processes."""
