"""Settings of one strategy each, with their checks; `job_config` has them all as one flat set of names."""
