"""Staged gradients, update rules, and the part of the parameters that a server holds."""
