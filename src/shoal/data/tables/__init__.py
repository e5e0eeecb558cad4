"""Parquet files as data: finding them and reading their rows as samples."""
