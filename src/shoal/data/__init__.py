"""Data: which sample goes to which worker in which step, and loading it. See `docs/packages/data.md`."""
