"""Who is in the job: the coordinator, its pure core and its clients. See `docs/packages/membership.md`."""
