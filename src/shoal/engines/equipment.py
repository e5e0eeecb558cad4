"""What a machine has, which versions it runs, without importing torch, and whether two machines can work together."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
from pathlib import Path

from shoal.engines import texts
from shoal.engines.nodes.agent_messages import Versions

GPUS = Path("/proc/driver/nvidia/gpus")  # a folder for each GPU


def own_versions() -> Versions:
    return Versions(python=platform.python_version(), torch=_installed("torch"), shoal=_installed("shoal"))


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0))


def gpus() -> int:
    with contextlib.suppress(OSError):
        return len(list(GPUS.iterdir()))
    return 0


def usual_slots() -> int:
    """Workers that this machine takes unless somebody says otherwise."""
    return gpus() or cores()


def difference(here: Versions, there: Versions, node: str) -> str:
    """Why workers of this launcher cannot run on that node: one line with the cure; empty: they can.

    A launcher without torch can start workers that have it. Builds of one version of torch for GPUs and for processors
    go together.
    """
    if not there.torch:
        return texts.no_torch(node, _public(here.torch))
    for what, own, its in (
        ("Python", _minor(here.python), _minor(there.python)),
        ("torch", _public(here.torch or there.torch), _public(there.torch)),
        ("Shoal", here.shoal, there.shoal),
    ):
        if own != its:
            return texts.versions_differ(what, node, its, own)
    return ""


def _minor(version: str) -> str:
    """'3.11' of '3.11.4'."""
    return ".".join(version.split(".")[:2])


def _public(version: str) -> str:
    """'2.13.0' of '2.13.0+cpu'."""
    return version.partition("+")[0]


def _installed(package: str) -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return ""
