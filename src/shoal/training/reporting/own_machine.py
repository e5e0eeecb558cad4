"""What this process runs on, told once, and what it uses of that, measured every few seconds at most.

A measurement takes some tens of microseconds. No variable of the environment is recorded: it may hold a secret.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import resource
import socket
import time
from pathlib import Path

import torch

from shoal.environment import own_node
from shoal.events import WorkerEquipped
from shoal.values import ProcessUse

# Seconds between two measurements: a part of the process's age within these limits, so that short jobs have some too.
SHORTEST, LONGEST, PART = 0.5, 5.0, 0.05
MOST_BYTES = 4096  # of a file of the kernel
CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")


class UseMeter:
    """Measures this process."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._due = 0.0
        self._last: ProcessUse | None = None

    def measure(self) -> ProcessUse:
        """The last measurement, unless a new one is due."""
        now = time.monotonic()
        if self._last is None or now >= self._due:
            age = now - self._began
            self._due = now + min(LONGEST, max(SHORTEST, PART * age))
            self._last = ProcessUse(age=age, processor=time.process_time(), memory=_resident())
        return self._last


def own_machine(worker: int) -> WorkerEquipped:
    return WorkerEquipped(
        worker=worker,
        host=socket.gethostname(),
        system=f"{platform.system()} {platform.release()}",
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        memory=_memory(),
        gpu=_gpu(),
        python=platform.python_version(),
        torch=str(torch.__version__),
        shoal=importlib.metadata.version("shoal"),
        node=own_node(),
    )


def _resident() -> int:
    pages = _begin(Path("/proc/self/statm")).split()
    if len(pages) > 1 and pages[1].isdigit():
        return int(pages[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # the most so far: better than nothing


def _memory() -> int:
    """Bytes of the machine, or of the container if that has fewer."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _begin(CONTAINER_LIMIT).strip()
    return min(whole, int(limit)) if limit.isdigit() else whole


def _processor() -> str:
    for line in _begin(Path("/proc/cpuinfo")).splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _gpu() -> str:
    """The GPU that this process uses. Asking torch about others would take memory on them."""
    if not torch.cuda.is_initialized():
        return ""
    return torch.cuda.get_device_name(torch.cuda.current_device())


def _begin(path: Path) -> str:
    """The beginning of a file of the kernel; empty where there is none."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        return file.read(MOST_BYTES).decode("utf-8", "replace")
    return ""
