"""Collectives between ranks of one machine, through shared memory."""
