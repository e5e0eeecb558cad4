"""Bytes between processes: framing, typed messages, the handshake. See `docs/packages/wire.md`."""
