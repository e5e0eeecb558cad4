"""Tables cut into blocks, where blocks are, and the memory that they lie in."""
