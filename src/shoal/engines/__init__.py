"""What starts and places processes, and sees them end. See `docs/packages/engines.md`."""
