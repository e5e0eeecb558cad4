"""Byte streams between the ranks of one generation: the interface, how streams end, and meshes within one process."""
