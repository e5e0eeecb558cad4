"""The processes of a job: what they are, those that run, what they print, and spare ones."""
