"""Checkpoints: the state as a tree, parts, stores, copies from peer to peer. See `docs/packages/checkpoint.md`."""
