"""Shoal trains one PyTorch model on many machines: the clusters people really have.

The public names are loaded when they are first used, so that `shoal run` starts without importing torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.data.streams import Files
    from shoal.data.tables.table_files import table_files
    from shoal.entry.shoal_main import main
    from shoal.launching.from_python.job_result import JobResult
    from shoal.launching.launch import launch
    from shoal.training.run import Epoch, Run

__version__ = "0.1.0"
__all__ = ["Epoch", "Files", "JobResult", "Run", "launch", "main", "table_files"]

_HOMES = {
    "Epoch": "shoal.training.run",
    "Files": "shoal.data.streams",
    "JobResult": "shoal.launching.from_python.job_result",
    "Run": "shoal.training.run",
    "launch": "shoal.launching.launch",
    "main": "shoal.entry.shoal_main",
    "table_files": "shoal.data.tables.table_files",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
