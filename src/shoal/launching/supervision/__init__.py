"""What the launcher does about exits, signals and the coordinator's messages. Pure."""
