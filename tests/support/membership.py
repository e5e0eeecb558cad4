"""Helpers for membership tests: replaying scenario files against the core, and the values that tests send.

A scenario is a list of commands, each followed by `----` and the instructions that the core answers with:

    join WORKER [client=NAME] [version=N] [port=N]      a worker connects; its client is called worker-N if not named
    watch [client=NAME] [version=N]                     a watcher connects; called launcher if not named
    beat WORKER step=N operation=TEXT                   a heartbeat
    broken WORKER peer=N step=N operation=TEXT generation=N reason=TEXT
    failed WORKER step=N error=NAME text=TEXT
    leave WORKER step=N reason=TEXT
    report WORKER KIND FIELD=VALUE...                   an event of a worker
    part WORKER step=N [generation=N] [FIELD=VALUE...]  its part of a checkpoint is written; [not=TEXT] it could not be
    published NAME [size=N] [removed=NAME,NAME]         the publisher's answers
    unpublished NAME reason=TEXT
    stop CLIENT reason=TEXT [exit_code=N]
    exit WORKER code=N                                  the launcher saw a process end
    working WORKER                                      the launcher saw a process use the processor
    close CLIENT [reason=TEXT]
    interrupt reason=TEXT                               the coordinator's own process is told to stop
    tick SECONDS                                        so much time passes, with a tick every tenth of a second
    stall SECONDS                                       so much time passes without a tick, then one comes

The first command, `job`, takes settings such as workers=4, and of a job that goes on past=N (its last generation) and
shares=[2,1].
"""

from __future__ import annotations

import json
import shlex
from typing import Any

import msgspec

from shoal.events import AnyEvent
from shoal.job_config import from_mapping
from shoal.membership.core import MembershipCore
from shoal.membership.protocol import (
    Arrived,
    CatchUp,
    Close,
    Closed,
    Discard,
    End,
    Input,
    Instruction,
    Interrupt,
    Note,
    Publish,
    Published,
    PublishFailed,
    Send,
    Tick,
)
from shoal.membership.publisher import PublishOutcome
from shoal.membership.regrouping import Past
from shoal.values import Address, Generation
from shoal.wire import messages
from shoal.wire.messages import PROTOCOL_VERSION, ClientMessage, Join

SEPARATOR = "----"
MISSING = {"step": 0, "operation": "all-reduce of gradients", "generation": 1, "peer": None, "reason": "reset by peer"}


def join(worker: int, *, version: int = PROTOCOL_VERSION, port: int = 7000) -> Join:
    return Join(
        version=version, worker=worker, host=f"host-{worker}", process=100 + worker, address=Address("127.0.0.1", port)
    )


def part(
    worker: int, *, step: int, generation: int = 1, failed: str = "", **fields: Any
) -> messages.PartWritten | messages.PartFailed:
    """What a worker says about its part, as the worker's own code does where nothing else is given."""
    shared: dict[str, Any] = {"checkpoint": f"step-{step:08}-g{generation}", "step": step, "generation": generation}
    if failed:
        return messages.PartFailed(**shared, reason=failed)
    written = {
        "file": f"part-{worker}.safetensors",
        "size": 100,
        "seconds": 0.5,
        "blocked": 0.25,
        "reason": "every 10 steps",
    }
    return messages.PartWritten(**shared | written | fields)


class Scenario:
    """One replay: names of clients, the core, and the virtual time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.core = MembershipCore(from_mapping({}, origin="test"), now=0.0)
        self.clients: dict[str, int] = {}

    def run(self, command: str) -> list[str]:
        verb, *words = shlex.split(command)
        options = dict(word.split("=", 1) for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        if verb == "job":
            settings = {name: msgspec.json.decode(value) for name, value in options.items()}
            past = Past(generation=settings.pop("past", 0), shares=tuple(settings.pop("shares", ())))
            self.core = MembershipCore(from_mapping(settings, origin="scenario"), now=self.now, past=past)
            return []
        if verb == "tick":
            return [line for _ in range(round(float(plain[0]) * 10)) for line in self._after(0.1)]
        if verb == "stall":
            return self._after(float(plain[0]))
        return self._handle(self._input(verb, plain, options))

    def _after(self, seconds: float) -> list[str]:
        self.now = round(self.now + seconds, 6)
        return [f"{self.now:.1f} s: {line}" for line in self._handle(Tick())]

    def _handle(self, happened: Input) -> list[str]:
        return [self._text(instruction) for instruction in self.core.handle(happened, self.now)]

    def _input(self, verb: str, plain: list[str], options: dict[str, str]) -> Input:
        if verb == "interrupt":
            return Interrupt(options["reason"])
        if verb == "close":
            return Closed(self.clients[plain[0]], options.get("reason", ""))
        if verb == "published":
            removed = tuple(filter(None, options.get("removed", "").split(",")))
            return Published(plain[0], PublishOutcome(size=int(options.get("size", 200)), removed=removed))
        if verb == "unpublished":
            return PublishFailed(plain[0], options["reason"])
        if verb in ("join", "watch"):
            name = options.pop("client", f"worker-{plain[0]}" if plain else "launcher")
            self.clients[name] = len(self.clients) + 1
            numbers = {key: int(value) for key, value in options.items()}
            first = join(int(plain[0]), **numbers) if plain else messages.Watch(version=PROTOCOL_VERSION)
            return Arrived(self.clients[name], first)
        client = {"stop": plain[0], "exit": "launcher", "working": "launcher"}.get(verb, f"worker-{plain[0]}")
        return Arrived(self.clients[client], self._message(verb, plain, options))

    def _message(self, verb: str, plain: list[str], options: dict[str, str]) -> ClientMessage:
        fields: dict[str, Any] = {key: int(v) if v.lstrip("-").isdigit() else v for key, v in options.items()}
        if verb == "part":
            return part(int(plain[0]), failed=fields.pop("not", ""), **fields)
        if verb == "report":
            event = msgspec.convert({"kind": plain[1], **fields}, AnyEvent, strict=False)
            return messages.Report(events=(event,))
        if verb == "exit":
            return messages.ProcessExited(worker=int(plain[0]), reason="", **fields)
        if verb == "working":
            return messages.ProcessWorking(worker=int(plain[0]))
        kind: type[Any] = {
            "beat": messages.Heartbeat,
            "broken": messages.ExchangeBroken,
            "failed": messages.Failed,
            "leave": messages.Leave,
            "stop": messages.StopRequest,
        }[verb]
        names = kind.__struct_fields__
        return kind(**{name: MISSING[name] for name in names if name in MISSING} | fields)  # type: ignore[no-any-return]  # one of the five above

    def _text(self, instruction: Instruction) -> str:
        names = {number: name for name, number in self.clients.items()}
        match instruction:
            case Send(clients, message):
                return f"to {', '.join(names[client] for client in clients)}: {as_text(message)}"
            case Note(event, _):
                return f"note {as_text(event)}"
            case CatchUp(client):
                return f"catch up {names[client]}"
            case Close(client):
                return f"close {names[client]}"
            case Publish(request):
                mark = f" marked {request.mark}" if request.mark else ""
                return f"publish {request.checkpoint} of {', '.join(request.files)}{mark}"
            case Discard(checkpoint):
                return f"discard {checkpoint}"
            case End(exit_code):
                return f"end with exit code {exit_code}"


def as_text(value: msgspec.Struct) -> str:
    """The name on the wire and the fields that tell something."""
    shown = []
    for name in value.__struct_fields__:
        field = getattr(value, name)
        if isinstance(field, Generation):
            members = " ".join(
                f"{member.rank}:{member.worker}" + (f" share {member.share}" if member.share != 1 else "")
                for member in field.members
            )
            shown.append(f"{field.number} ranks [{members}] {json.dumps(field.reason)}")
        elif name == "seconds":
            shown.append(f"seconds={field:.1f}")
        elif name != "config":
            shown.append(f"{name}={json.dumps(field)}")
    return " ".join([str(value.__struct_config__.tag), *shown])


def replay(text: str) -> str:
    """The scenario with the answers that the core gives today."""
    scenario = Scenario()
    out: list[str] = []
    answering = False
    for line in text.splitlines():
        if answering and line.strip():
            continue
        answering = False
        out.append(line)
        if line.strip() and not line.startswith("#"):
            out += [SEPARATOR, *scenario.run(line)]
            answering = True
    return "\n".join(out) + "\n"
