"""Scenario files about the launcher's supervisor: the live core, with processes that are only numbers.

job workers=N [max-failures=N]
back                                 the coordinator answers, for the first time or again
gone HOW [for-good]                  its process ended; for-good: it gave up before it had answered once
exit N code=N                        a worker's process ended
number N                             the coordinator gives a number that was asked for
joined N | left N | handed-over N | died N | stepped N
turned-away N                        the job does not take that worker: its script says something else
stop-noted                           the coordinator has noted a stop
waiting                              too few members are left, and others are waited for
saving NAME [last] | saved NAME | unsaved NAME
disk-full | disk-back                the coordinator waits for the disk
ended [code=N] [error=NAME] [reason=TEXT]
signal NAME                          the launcher got SIGINT, SIGTERM, SIGHUP or SIGPIPE
servers-failed TEXT                  the parameter servers cannot be kept running
tick [SECONDS]                       so much time passes; none named: up to the supervisor's deadline
"""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from shoal import events
from shoal.launching.supervision import orders
from shoal.launching.supervision.supervisor import Supervisor
from shoal.wire.messages import Ended, Enlisted
from support import supervision
from support.scenarios import value

WORKERS: dict[str, Callable[[int], orders.Fact]] = {
    "number": lambda worker: Enlisted(worker=worker),
    "joined": supervision.joined,
    "left": supervision.left,
    "handed-over": supervision.handed_over,
    "died": supervision.died,
    "stepped": supervision.stepped,
    "turned-away": supervision.turned_away,
}
CHECKPOINTS: dict[str, Callable[[str], orders.Fact]] = {
    "saved": supervision.saved,
    "unsaved": supervision.unsaved,
}
WITHOUT: dict[str, Callable[[], orders.Fact]] = {
    "back": orders.CoordinatorBack,
    "stop-noted": lambda: supervision.STOP_NOTED,
    "waiting": lambda: events.Waiting(workers=1, needed=2, reason="too few workers are left"),
    "disk-full": supervision.unwritten,
    "disk-back": supervision.written,
}


class Scenario:
    """One replay: the core and the virtual time."""

    def __init__(self) -> None:
        self.now = 0.0

    def run(self, command: str) -> list[str]:
        verb, *words = shlex.split(command)
        options: dict[str, Any] = {}
        for word in words:
            if "=" in word:
                name, text = word.split("=", 1)
                options[name] = value(text)
        plain = [word for word in words if "=" not in word]
        if verb == "job":
            self.supervisor = Supervisor(options["workers"], options.get("max-failures", 3))
            return []
        if verb == "tick":
            due = self.supervisor.deadline
            assert plain or due is not None, "nothing is due"
            self.now += float(plain[0]) if plain else due - self.now  # type: ignore[operator]  see above
            return [f"at {self.now:g} s", *self._handle(orders.TimePassed())]
        return self._handle(_fact(verb, plain, options))

    def _handle(self, fact: orders.Fact) -> list[str]:
        return [_text(instruction) for instruction in self.supervisor.handle(fact, self.now)]


def _fact(verb: str, plain: list[str], options: dict[str, Any]) -> orders.Fact:
    if verb in WORKERS:
        return WORKERS[verb](int(plain[0]))
    if verb in CHECKPOINTS:
        return CHECKPOINTS[verb](plain[0])
    if verb in WITHOUT:
        return WITHOUT[verb]()
    match verb:
        case "gone":
            return orders.CoordinatorExited(plain[0], may_return="for-good" not in plain)
        case "exit":
            return orders.WorkerExited(int(plain[0]), options["code"])
        case "saving":
            return supervision.saving(plain[0], is_last="last" in plain)
        case "ended":
            text = str(options.get("reason", "all workers finished"))
            return Ended(exit_code=options.get("code", 0), error=options.get("error", ""), text=text)
        case "signal":
            return orders.Signalled(signal.Signals[plain[0]])
        case "servers-failed":
            return orders.ServersFailed(plain[0])
    raise AssertionError(f"there is no command {verb}")


def _text(instruction: orders.Instruction) -> str:
    """The instruction's name and what is in it, without what is empty."""
    if isinstance(instruction, orders.Say):
        return f"say: {instruction.text}"
    found = ((field.name, getattr(instruction, field.name)) for field in fields(instruction))
    said = (f"{name}={what!r}" for name, what in found if what not in ("", None))
    return " ".join((type(instruction).__name__, *said))
