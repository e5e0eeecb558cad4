"""How bytes get from one process to another. See `docs/packages/transport.md`."""
