"""What kills of workers cost."""
