"""A campaign of random faults against whole jobs: `make campaign`, or a tenth of it in `make test-long`.

`plans` says what happens to which job (pure), `script` is what the jobs run, `local_jobs`, `disk_jobs` and `host_jobs`
run one with its faults, `judging` says what was wrong with it afterwards.
"""
