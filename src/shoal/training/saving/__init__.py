"""Checkpoints of one worker: when they are due, the parts that it saves, and where a resumed job goes on."""
