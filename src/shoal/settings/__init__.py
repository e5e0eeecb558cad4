"""Settings that some strategies have, declared and checked beside each other; `job_config` puts them together."""
