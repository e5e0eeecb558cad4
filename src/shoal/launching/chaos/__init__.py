"""Faults on purpose (`--chaos`): the text, when they strike whom, and doing it."""
