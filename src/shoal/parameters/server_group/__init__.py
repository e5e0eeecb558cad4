"""Who is in a server group and which map is valid: the keeper's decisions. Pure."""
