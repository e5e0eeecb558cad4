"""Other libraries as carriers of a group: gloo, NCCL and MPI move the bytes. See docs/carriers.md."""
