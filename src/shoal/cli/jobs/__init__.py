"""Commands that run jobs and what jobs consist of: `run`, `join`, `coordinator`, `server`, `servers`, `manifests`."""
