"""What a script that runs from the top goes on with: a newcomer's, a resumed one, or one that starts again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shoal.terms import ScriptCall


@dataclass(frozen=True)
class Past:
    """What a script that starts again from the top must know of its calls so far."""

    state: dict[str, Any]
    loop: int  # number of the loop that is going on
    first_step: int  # applied steps when that loop began
    results: tuple[Any, ...]  # of collectives outside loops, in program order
    is_resumed: bool = False  # from a checkpoint, all workers together
    points: int = 0  # meetings outside loops that running members have passed
    in_loop: bool = True  # that loop is not over
    ended: tuple[int, str] | None = None  # the meeting before an epoch at which a stop ended `run.epochs`, and why
    calls: tuple[ScriptCall, ...] = ()  # of running members, to compare this script's own with


class StartAgain(BaseException):
    """The script must run from the top: it left a loop in a void iteration, or the others are elsewhere in it.

    Not an Exception: scripts must not catch it.
    """

    def __init__(
        self, reason: str, past: Past | None = None, *, is_settled: bool = False, trusted: int | None = None
    ) -> None:
        super().__init__(reason)
        self.past = past  # what the script goes on with; None: the newest checkpoint, or nothing
        self.trusted = trusted  # checkpoints of later steps are not to be used; None: all may be
        self.is_settled = is_settled  # this worker is in a generation that has agreed on the restart
