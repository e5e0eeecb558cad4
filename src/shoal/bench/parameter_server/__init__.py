"""Push and pull against torch RPC; slow workers."""
