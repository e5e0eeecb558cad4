"""What a job makes on disk: its run directory, the file with its token, the report."""
