"""Schedules: who sends which segment to whom in which round, as data, and the executor that runs them over a mesh."""
