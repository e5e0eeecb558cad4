"""Where a job's workers and servers run if not on this machine (`--on`)."""
