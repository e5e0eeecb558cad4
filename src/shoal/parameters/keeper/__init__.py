"""The keeper: who is in a server group and which map is valid (pure), and the thread that tells servers and workers."""
