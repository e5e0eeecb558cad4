"""A separate process that ends a job's process groups when the launcher was killed.

It runs as a script. Its standard input is a pipe whose other end the launcher holds. The line `+PID SECONDS` adds a
process group that may live so many seconds longer than the launcher, `-PID` removes one. The end of the input means
that the launcher has ended. Arguments are such lines, for existing groups, and private files, which are removed
together with their folders, and private folders, which are removed with everything in them. The script imports next to
nothing, so that it starts fast. The launcher uses the same functions to end a process group.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import sys
import time

# Python's resource tracker removes semaphores and shared memory that processes have left. It ends when all processes
# that use it are gone, and must not be killed before.
TRACKER = b"multiprocessing.resource_tracker"
SWEEP_SECONDS = 5.0  # that a tracker may take; the memory of a large process is freed at 5 GB a second
EXEC_LOOKS, EXEC_PAUSE = 100, 0.002  # checks, and seconds between two, of a process that begins to run a program
ROUNDS = 50  # of looking for processes that were forked while others were killed


def read_groups(known: list[str]) -> dict[int, float]:
    """Read to the end of the input. Returns the remaining groups with their seconds."""
    groups: dict[int, float] = {}
    for line in itertools.chain(known, sys.stdin):
        sign, fields = line[0], line[1:].split()
        if sign == "+":
            groups[int(fields[0])] = float(fields[1])
        else:
            groups.pop(int(fields[0]), None)
    return groups


def end(groups: dict[int, float]) -> None:
    """Kill each group after its seconds; then give resource trackers their time."""
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
    """Kill all processes of these groups except resource trackers. Returns the trackers' pidfds."""
    killed: set[int] = set()  # these may take a while to end
    for _ in range(ROUNDS):
        trackers, others = _sorted_out(groups)
        if not trackers:
            break
        if killed.issuperset(others):
            return [pidfd for pid in trackers if (pidfd := _open(pid, groups)) is not None]
        for pid in others:
            _signal(pid, groups, signal.SIGKILL)
        killed.update(others)
    _signal_whole(groups, signal.SIGKILL)
    return []


def signal_groups(groups: list[int], number: signal.Signals) -> None:
    """Signal all processes except resource trackers: a new tracker does not ignore SIGTERM yet."""
    trackers, others = _sorted_out(groups)
    if not trackers:
        _signal_whole(groups, number)
        return
    for pid in others:
        _signal(pid, groups, number)


def kill(pidfd: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it ended by itself
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def _signal_whole(groups: list[int], number: signal.Signals) -> None:
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it ended by itself
            os.killpg(group, number)


def _signal(pid: int, groups: list[int], number: signal.Signals) -> None:
    pidfd = _open(pid, groups)
    if pidfd is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(pidfd, number)
        os.close(pidfd)


def _sorted_out(groups: list[int]) -> tuple[list[int], list[int]]:
    """Resource trackers, and all other processes of these groups."""
    members = _members(groups)
    trackers = [pid for pid in members if _is_tracker(pid)]
    return trackers, [pid for pid in members if pid not in trackers]


def _members(groups: list[int]) -> list[int]:
    """Processes of these groups that have not ended."""
    try:
        names = os.listdir("/proc")  # noqa: PTH208  pathlib would double the time to start
    except OSError:
        return []
    return [int(name) for name in names if name.isdigit() and _is_in(int(name), groups)]


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
    """A process that begins to run a program has no command line yet: wait for it."""
    for _ in range(EXEC_LOOKS):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123
                command = file.read(4096)
        except OSError:
            return False
        if command:
            return TRACKER in command
        time.sleep(EXEC_PAUSE)
    return False


def _open(pid: int, groups: list[int]) -> int | None:
    """A pidfd of that process; None if it has ended, since its number may belong to another process now."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return None
    if _is_in(pid, groups):
        return pidfd
    os.close(pidfd)
    return None


def remove(file: str) -> None:
    if os.path.isdir(file) and not os.path.islink(file):  # noqa: PTH112, PTH114
        import shutil  # noqa: PLC0415  only now: there is time

        shutil.rmtree(file, ignore_errors=True)
        return
    with contextlib.suppress(OSError):  # the launcher did it itself
        os.unlink(file)  # noqa: PTH108  pathlib would double the time to start
        os.rmdir(os.path.dirname(file))  # noqa: PTH106, PTH120


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # batch systems signal every process; this one must be the last
    end(read_groups([argument for argument in sys.argv[1:] if argument.startswith("+")]))
    for private in sys.argv[1:]:
        if not private.startswith("+"):
            remove(private)
