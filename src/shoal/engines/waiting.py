"""Waiting for one of several descriptors, however high their numbers are."""

from __future__ import annotations

import select
from collections.abc import Sequence
from typing import Protocol


class Source(Protocol):
    """Something to wait for."""

    def fileno(self) -> int: ...


def wait_for(sources: Sequence[Source], seconds: float | None) -> bool:
    """Whether one of them can be read; waits up to so many seconds, or without end.

    `select` would refuse descriptors from 1024 on, which a program that calls `shoal.launch` may well have.
    """
    poll = select.poll()
    for source in sources:
        poll.register(source.fileno(), select.POLLIN)
    return bool(poll.poll(None if seconds is None else seconds * 1000))
