"""Tensors that live on GPUs: pinned host memory, copies that overlap, and the way that a group takes."""
