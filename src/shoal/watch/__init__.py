"""What people see of a job: progress, notices, the summary at its end, its report. See `docs/packages/watch.md`."""
