"""Write a fault to the log of this process, or drop it if the write would block.

The log is usually a pipe to the process that started this one. If that process does not read the pipe, a thread that
writes to it blocks, and so do all clients of that thread.
"""

from __future__ import annotations

import contextlib
import os
import select
import traceback

MOST_BYTES = 4000  # a pipe that polls as writable takes this many without blocking
STANDARD_ERROR = 2


def write_exception() -> None:
    """Write the traceback of the exception being handled, or the end of a long traceback."""
    text = traceback.format_exc().encode(errors="replace")
    poll = select.poll()
    with contextlib.suppress(OSError):  # there is no log
        poll.register(STANDARD_ERROR, select.POLLOUT)
        if poll.poll(0) == [(STANDARD_ERROR, select.POLLOUT)]:
            os.write(STANDARD_ERROR, text[-MOST_BYTES:])
