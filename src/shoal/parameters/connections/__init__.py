"""Non-blocking connections of a server group; workers, servers and the keeper use the same classes."""
