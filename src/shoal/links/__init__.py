"""Links between workers: measuring them, and the cost model that chooses schedules. See `docs/packages/links.md`."""
