"""A job's parameter servers, as its launcher sees them."""
