"""How workers and the job end: deaths, failures, finishing. Pure."""
