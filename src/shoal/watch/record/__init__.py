"""What a run directory tells of a job: its lines, and what they are reduced to."""
