"""A process of its own that ends a job's process groups when the launcher was killed and cannot do it.

Run as a script with a pipe as standard input, of which the launcher holds the other end. Lines: `+PID SECONDS` adds a
process group that may live so many seconds longer than the launcher, `-PID` takes one off. The end of the input is the
launcher's end, however it came. Arguments are private files, each alone in its folder, which go too. Imports next to
nothing, so that starting it costs little. How a process group is ended is here too, for the launcher does it in the
same way.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time

# Python's resource tracker removes semaphores and shared memory that processes have left. It ends when all of them
# are gone, and must not be killed before.
TRACKER = b"multiprocessing.resource_tracker"
SWEEP_SECONDS = 5.0  # that it may take; the memory of a large process is freed at 5 GB a second
ROUNDS = 50  # of looking for processes that were forked while the others were killed


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
    """Each after its seconds; trackers have theirs meanwhile."""
    start = time.monotonic()
    trackers: list[int] = []
    for seconds in sorted(set(groups.values())):
        time.sleep(max(0.0, start + seconds - time.monotonic()))
        trackers += kill_groups([group for group, its in groups.items() if its == seconds])
    limit = time.monotonic() + SWEEP_SECONDS
    for tracker in trackers:
        select.select([tracker], [], [], max(0.0, limit - time.monotonic()))
        kill(tracker)


def kill_groups(groups: list[int]) -> list[int]:
    """SIGKILL to all processes of these groups but resource trackers, whose pidfds are returned."""
    killed: set[int] = set()  # it may take a while until they have ended
    for _ in range(ROUNDS):
        members = _members(groups)
        trackers = [pid for pid in members if _is_tracker(pid)]
        if not trackers:
            break
        others = [pid for pid in members if pid not in trackers and pid not in killed]
        if not others:
            return [pidfd for pid in trackers if (pidfd := _open(pid, groups)) is not None]
        for pid in others:
            pidfd = _open(pid, groups)
            if pidfd is not None:
                kill(pidfd)
                os.close(pidfd)
        killed.update(others)
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it ended by itself
            os.killpg(group, signal.SIGKILL)
    return []


def kill(pidfd: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it ended by itself
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def _members(groups: list[int]) -> list[int]:
    """Processes of these groups that have not ended."""
    numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208  pathlib would double the time to start
    return [pid for pid in numbers if _is_in(pid, groups)]


def _is_in(pid: int, groups: list[int]) -> bool:
    try:
        if os.getpgid(pid) not in groups:
            return False
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            state = file.read().rpartition(b")")[2].split()[0]  # a process's name may hold anything
    except (OSError, IndexError):
        return False
    return state not in (b"Z", b"X")


def _is_tracker(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123
            return TRACKER in file.read(4096)
    except OSError:
        return False


def _open(pid: int, groups: list[int]) -> int | None:
    """A pidfd of that member; None when it has ended, and its number may be another's."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return None
    if _is_in(pid, groups):
        return pidfd
    os.close(pidfd)
    return None


def remove(file: str) -> None:
    with contextlib.suppress(OSError):  # the launcher did it itself
        os.unlink(file)  # noqa: PTH108  pathlib would double the time to start
        os.rmdir(os.path.dirname(file))  # noqa: PTH106, PTH120


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # batch systems signal every process; this one must be the last
    end(read_groups())
    for private in sys.argv[1:]:
        remove(private)
