"""Strangers that connect in great numbers and say nothing, in a process of their own.

Run as a program with HOST, PORT and a number: opens so many connections, says `open` when each of them was greeted or
closed, and then, for every line on its standard input, how many of them nobody has closed.
"""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from shoal.values import Address


class Flood:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def still_open(self) -> int:
        """How many connections are still open, as the strangers see it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("count\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@contextlib.contextmanager
def flood(address: Address, count: int) -> Iterator[Flood]:
    """While the block runs, so many strangers have connected and are silent."""
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__)), address.host, str(address.port), str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "open\n"
        yield Flood(process)
    finally:
        process.kill()
        process.communicate()


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    strangers = []
    for _ in range(count):
        stranger = socket.create_connection((host, port), timeout=60)
        stranger.setblocking(False)
        strangers.append(stranger)
    for stranger in strangers:
        greeted = select.poll()
        greeted.register(stranger, select.POLLIN)
        greeted.poll(60_000)
    _say("open")
    for _ in sys.stdin:
        poll = select.poll()
        for stranger in strangers:
            poll.register(stranger, select.POLLRDHUP)
        _say(str(count - len(poll.poll(0))))


if __name__ == "__main__":
    main()
