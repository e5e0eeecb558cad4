"""Collectives: schedules as data, one executor, the group that strategies use. See `docs/packages/collectives.md`."""
