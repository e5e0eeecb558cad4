"""Words about a fault in the process's log, for whoever looks into it; dropped where writing them would take waiting.

The log is a pipe to whoever started the process, as a rule. If that one does not read, a thread that writes there waits
for it, and everybody whom the thread serves waits too.
"""

from __future__ import annotations

import contextlib
import os
import select
import traceback

MOST_BYTES = 4000  # a pipe that is ready takes so many at once
STANDARD_ERROR = 2


def write_exception() -> None:
    """The exception that is being handled; of a long one, the end."""
    text = traceback.format_exc().encode(errors="replace")
    poll = select.poll()
    with contextlib.suppress(OSError):  # there is no log
        poll.register(STANDARD_ERROR, select.POLLOUT)
        if poll.poll(0) == [(STANDARD_ERROR, select.POLLOUT)]:
            os.write(STANDARD_ERROR, text[-MOST_BYTES:])
