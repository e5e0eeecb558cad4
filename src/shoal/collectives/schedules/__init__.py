"""Schedules: who sends which segment to whom in which round, as data, and what runs them over a mesh."""
