"""What a job has on disk, however it was started: run directory, token, report. See `docs/packages/disk.md`."""
