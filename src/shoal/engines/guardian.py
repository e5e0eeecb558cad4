"""A process of its own that ends a job's process groups when the launcher was killed and cannot do it.

Run as a script with a pipe as standard input, of which the launcher holds the other end. Lines: `+PID SECONDS` adds a
process group that may live so many seconds longer than the launcher, `-PID` takes one off. The end of the input is the
launcher's end, however it came. Arguments are private files, each alone in its folder, which go too. Imports next to
nothing, so that starting it costs little.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time


def read_groups() -> dict[int, float]:
    """Returns at the end of the input: the groups that are left, with their seconds."""
    groups: dict[int, float] = {}
    for line in sys.stdin:
        sign, fields = line[0], line[1:].split()
        if sign == "+":
            groups[int(fields[0])] = float(fields[1])
        else:
            groups.pop(int(fields[0]), None)
    return groups


def end(groups: dict[int, float]) -> None:
    waited = 0.0
    for group, seconds in sorted(groups.items(), key=lambda item: item[1]):
        time.sleep(max(0.0, seconds - waited))
        waited = max(waited, seconds)
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it ended by itself
            os.killpg(group, signal.SIGKILL)


def remove(file: str) -> None:
    with contextlib.suppress(OSError):  # the launcher did it itself
        os.unlink(file)  # noqa: PTH108  pathlib would double the time to start
        os.rmdir(os.path.dirname(file))  # noqa: PTH106, PTH120


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # batch systems signal every process; this one must be the last
    end(read_groups())
    for private in sys.argv[1:]:
        remove(private)
