"""Training inside a Ray program: `shoal.ray.train(function, dataset, at=URL, workers=4)`."""

from __future__ import annotations

from shoal.launching.from_python.ray_program import train

__all__ = ["train"]
