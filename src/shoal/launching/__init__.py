"""Starting a job, watching it and clearing up after it. See `docs/packages/launching.md`."""
