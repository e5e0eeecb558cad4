"""Connections of a server group, which do not block: workers, servers and the keeper use the same ones."""
