"""Agents in the executors of a Spark application."""
