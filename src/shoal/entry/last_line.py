"""Where a script's last line is: whether anything follows its call of `shoal.main`, and a word to the job when it ran.

A worker that is killed after its script's last line costs the job nothing; one that is killed before may leave
something undone. Not here: what follows from that (`membership.finishing`).
"""

from __future__ import annotations

import atexit
import dis
import os
import sys
from types import FrameType

from shoal.membership.client import CoordinatorClient

# What Python itself puts behind a call that is the last thing in a module or a function; names of 3.11 and later.
NOTHING = {"POP_TOP", "LOAD_CONST", "NOP", "STORE_NAME", "STORE_FAST", "STORE_GLOBAL"}
RETURNS = {"RETURN_VALUE", "RETURN_CONST"}


def ends_with(frame: FrameType | None) -> bool:
    """Whether the script ends when the call that this frame is in returns. False where that is not certain."""
    while frame is not None and _returns_next(frame):
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__":
            return True
        frame = frame.f_back
    return False


def _returns_next(frame: FrameType) -> bool:
    """Whether nothing but a return comes after the call that the frame is in."""
    for instruction in dis.get_instructions(frame.f_code):
        if instruction.offset <= frame.f_lasti:
            continue
        if instruction.opname in RETURNS:
            return True
        if instruction.opname not in NOTHING:
            return False
    return False


def tell_last_line(client: CoordinatorClient, *, step: int) -> None:
    """Say that the script has come to its last line, when the interpreter comes to its end. Closes the client then."""
    process = os.getpid()

    def tell() -> None:
        if os.getpid() != process:
            return  # a child that the script forked
        if getattr(sys, "last_value", None) is None:  # else the script raised: the exit code says so
            client.leave(step=step, reason="the script is done")
        client.close()

    atexit.register(tell)
