"""Memory that processes of one machine share: arenas, waiting on shared words, and which ranks of a group share it."""
