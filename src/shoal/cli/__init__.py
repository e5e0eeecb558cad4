"""The command line: one file per command. See `docs/packages/cli.md`."""
