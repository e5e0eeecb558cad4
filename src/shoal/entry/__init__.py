"""What runs in a process that executes a user's script. See `docs/packages/entry.md`."""
