"""Connections: framing, the proof of a secret, TLS, limits on strangers. See `docs/packages/connection.md`."""
