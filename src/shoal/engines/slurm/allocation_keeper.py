"""A process between the launcher and `salloc`: ends an allocation, or a request for one, when the launcher is gone.

It runs as a script; its arguments are the mark of the holder's line and salloc's command. The end of its input means
that the launcher has ended, or that it wants no more nodes. `salloc` of Slurm 22.05 can spin for ever if a signal comes
just when its own command ends. So a signal is sent only while the request waits; an allocation ends with the command
that holds it, and a `salloc` that does not end then is killed. The script imports next to nothing, so that it starts
fast.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

END_SECONDS = 10.0  # that salloc may take to give an allocation back
READ_BYTES = 65536


def keep(mark: str, command: list[str]) -> int:
    """`mark`: what the line begins with that tells of an allocation; other programs may print something before."""
    salloc = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # not before: salloc would inherit it
        signal.signal(number, signal.SIG_IGN)
    assert salloc.stdin is not None
    assert salloc.stdout is not None
    is_given = _pass_on(salloc.stdout.fileno(), mark.encode())
    salloc.stdin.close()  # the end of its command's input
    if not is_given and salloc.poll() is None:
        salloc.send_signal(signal.SIGINT)  # takes the request back
    try:
        return salloc.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        salloc.kill()
        return salloc.wait()


def _pass_on(told: int, mark: bytes) -> bool:
    """Pass on what is printed, until that or this process's input ends. True: the holder has told of an allocation."""
    is_given = False
    last = b""  # as much as may be the beginning of the mark
    while True:
        ready, _, _ = select.select([0, told], [], [])
        if told in ready:
            data = os.read(told, READ_BYTES)
            if not data:
                return is_given
            is_given = is_given or mark in last + data
            last = (last + data)[-len(mark) :]
            os.write(1, data)
        if 0 in ready and not os.read(0, READ_BYTES):
            return is_given


if __name__ == "__main__":
    sys.exit(keep(sys.argv[1], sys.argv[2:]))
