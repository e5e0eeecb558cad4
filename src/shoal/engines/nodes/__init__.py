"""Processes on other machines: an agent on every node, an engine over all agents. See `docs/packages/engines.md`."""
