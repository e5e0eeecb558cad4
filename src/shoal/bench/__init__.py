"""Benchmarks: `shoal bench NAME`, one sub-package each, with one harness and one verdict for all."""
