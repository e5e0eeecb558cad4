"""How tables are cut into blocks, which servers hold the blocks, and the memory that they lie in."""
