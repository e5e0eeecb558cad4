"""Driving an engine in tests: waiting for what its processes print and for their ends."""

from __future__ import annotations

import select
import sys
import time

from shoal.engines.engine import Engine, Exited, Happening, Printed, ProcessSpec

PATIENCE = 60.0  # seconds
# In short sleeps: Python sleeps through a signal that comes between its last look for one and the system call.
PATIENT = "while True: time.sleep(0.05)"


def python(code: str, *, name: str = "p", **given: object) -> ProcessSpec:
    """A process that runs `code`; `given` are further fields of its spec."""
    spec = {"command": (sys.executable, "-S", "-c", code), "variables": {}, **given}
    return ProcessSpec(name=name, **spec)  # type: ignore[arg-type]  of several types


def until_exits(engine: Engine, count: int = 1) -> list[Happening]:
    happened: list[Happening] = []
    limit = time.monotonic() + PATIENCE
    while sum(isinstance(one, Exited) for one in happened) < count:
        assert select.select([engine], [], [], limit - time.monotonic())[0], happened
        happened += engine.poll()
    return happened


def printed(happened: list[Happening], name: str = "p") -> bytes:
    return b"".join(one.data for one in happened if isinstance(one, Printed) and one.name == name)


def until_printed(engine: Engine, *names: str) -> dict[str, bytes]:
    """One line, at least, of each of these processes."""
    found = dict.fromkeys(names, b"")
    while any(b"\n" not in data for data in found.values()):
        assert select.select([engine], [], [], PATIENCE)[0], found
        for happened in engine.poll():
            assert not isinstance(happened, Exited), (happened, found)
            if isinstance(happened, Printed):
                found[happened.name] += happened.data
    return found
