"""The command line: one file per command, and what `shoal run` is made of. See `docs/packages/cli.md`."""
