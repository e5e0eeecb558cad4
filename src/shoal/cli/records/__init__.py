"""Commands about what jobs have left behind: records, reports, checkpoints."""
