"""What `shoal.launch` adds to `shoal run`: functions in place of scripts, and the result of a job as an object."""
