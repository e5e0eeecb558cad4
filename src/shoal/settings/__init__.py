"""Settings that only some strategies have: declared and checked here, put together by `job_config`."""
