"""Helpers for membership tests: replaying scenario files against the core, and the values that tests send.

A scenario is a list of commands, each followed by `----` and the instructions that the core answers with:

    join WORKER [client=NAME] [version=N] [port=N] [process=N] [shoal=TEXT] [torch=TEXT] [python=TEXT]
                                                        a worker connects; its client is worker-N if not named
    back WORKER [generation=N] [was_member=0]           it connects again, after its connection was closed
    watch [client=NAME] [launcher=0]                    a watcher connects; called launcher if not named
    beat WORKER step=N operation=TEXT [point=N]         a heartbeat
    broken WORKER peer=N step=N operation=TEXT generation=N reason=TEXT [holds=N] [is_planned=1] [must_restore=1]
    ready WORKER [generation=N] [seen=N] [is_ahead=1]   it is in no group and wants to be let in
    calls WORKER first=N WHAT...                        what its script has called, from the call with that index on
    enlist [CLIENT]                                     a watcher asks for one more number
    failed WORKER step=N error=NAME text=TEXT
    done WORKER step=N [generation=N] [points=N] [is_through=1] [is_leaving=1]   its function has returned, and it waits
    leave WORKER step=N reason=TEXT [is_handover=1]
    report WORKER KIND FIELD=VALUE...                   an event of a worker
    part WORKER step=N [generation=N] [FIELD=VALUE...]  its part of a checkpoint is written; [not=TEXT] it could not be
    published NAME [size=N] [removed=NAME,NAME]         the publisher's answers
    unpublished NAME reason=TEXT
    stop CLIENT reason=TEXT [exit_code=N]
    exit WORKER code=N                                  the launcher saw a process end
    working WORKER                                      the launcher saw a process use the processor
    close CLIENT [reason=TEXT]
    full FILE [holds_up=0]                              a file cannot be written, and decisions wait for it
    room FILE [holds_up=0]                              it can be again
    interrupt reason=TEXT                               the coordinator's own process is told to stop
    tick SECONDS                                        so much time passes, with a tick every tenth of a second
    stall SECONDS                                       so much time passes without a tick, then one comes
    alive SECONDS WORKER...                             so much time passes while these send heartbeats, step by step
    idle SECONDS WORKER...                              the same, but their steps do not go up
    restart                                             the coordinator is started again, with what it had written down

Decisions are shown as `decided`; beats are not shown. The first command, `job`, takes settings such as workers=4, and
of a job that goes on past=N (its last generation) and shares=[2,1]; joins=true: its script is known to join.
"""

from __future__ import annotations

import json
import shlex
from typing import Any

import msgspec

from shoal.events import AnyEvent, StorageFailed, StorageRestored, WorkerLeft
from shoal.job_config import from_mapping
from shoal.membership.core.core import MembershipCore
from shoal.membership.core.decisions import (
    CheckpointDecided,
    Decision,
    EndDecided,
    FailureCounted,
    GenerationDecided,
    MemberLeft,
    MembersReleased,
    NumberGiven,
    StopDecided,
    add_up,
)
from shoal.membership.core.protocol import (
    Arrived,
    CatchUp,
    Close,
    Closed,
    DiscardCheckpoint,
    End,
    Input,
    Instruction,
    Interrupt,
    JobProgram,
    Noticed,
    Publish,
    Published,
    PublishFailed,
    RecordEvent,
    Send,
    Tick,
    WriteDecision,
)
from shoal.membership.generations.forming import EarlierGenerations
from shoal.membership.publisher import PublishOutcome
from shoal.terms import Made, ScriptCall
from shoal.values import Address, Generation, Unreached
from shoal.wire import messages
from shoal.wire.messages import PROTOCOL_VERSION, ClientMessage, Join
from support.scenarios import value

MISSING = {"step": 0, "operation": "all-reduce of gradients", "generation": 1, "peer": None, "reason": "reset by peer"}


def join(worker: int, *, port: int = 7000, **fields: Any) -> Join:
    """As a worker's own code says it, where nothing else is given."""
    said = {"version": PROTOCOL_VERSION, "host": f"host-{worker}", "process": 100 + worker, "generation": 0}
    return Join(worker=worker, address=Address("127.0.0.1", port), **said | fields)


def broken(*, step: int, generation: int = 1, peer: int | None = None) -> messages.ExchangeBroken:
    """What a member with the job's state says when a collective failed."""
    return messages.ExchangeBroken(
        generation=generation, step=step, operation="all-reduce", peer=peer, reason="on purpose", holds=generation
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
        self.settings: dict[str, Any] = {}
        self.decisions: list[Decision] = []
        self.clients: dict[str, int] = {}
        self.steps: dict[int, int] = {}  # of workers that are alive
        self.count = 0  # clients so far

    def run(self, command: str) -> list[str]:
        verb, *words = shlex.split(command)
        options = dict(word.split("=", 1) for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        if verb == "job":
            self.settings = {name: msgspec.json.decode(value) for name, value in options.items()}
            self.core = self._new_core()
            return []
        if verb == "restart":
            self.core = self._new_core()
            self.clients = {}
            return []
        if verb in ("alive", "idle"):
            return self._alive(float(plain[0]), [int(word) for word in plain[1:]], pace=int(verb == "alive"))
        if verb == "tick":
            return [line for _ in range(round(float(plain[0]) * 10)) for line in self._after(0.1)]
        if verb == "stall":
            return self._after(float(plain[0]))
        return self._handle(self._input(verb, plain, options))

    def _new_core(self) -> MembershipCore:
        settings = dict(self.settings)
        past = EarlierGenerations(generation=settings.pop("past", 0), shares=tuple(settings.pop("shares", ())))
        program = JobProgram(joins=settings.pop("joins", False))
        config = from_mapping(settings, origin="scenario")
        return MembershipCore(config, now=self.now, past=past, remembered=add_up(self.decisions), program=program)

    def _alive(self, seconds: float, workers: list[int], *, pace: int) -> list[str]:
        lines = []
        for _ in range(round(seconds * 10)):
            for worker in workers:
                self.steps[worker] = self.steps.get(worker, 0) + pace
                generation = self.core._generations.current
                beat = messages.Heartbeat(
                    generation=0 if generation is None else generation.number,
                    step=self.steps[worker],
                    operation="forward and backward",
                )
                self.core.handle(Arrived(self.clients[f"worker-{worker}"], beat), self.now)
            lines += self._after(0.1)
        return lines

    def _after(self, seconds: float) -> list[str]:
        self.now = round(self.now + seconds, 6)
        return [f"{self.now:.1f} s: {line}" for line in self._handle(Tick())]

    def _handle(self, happened: Input) -> list[str]:
        instructions = self.core.handle(happened, self.now)
        self.decisions += [
            instruction.decision for instruction in instructions if isinstance(instruction, WriteDecision)
        ]
        return [
            self._text(instruction)
            for instruction in instructions
            if not (isinstance(instruction, Send) and isinstance(instruction.message, messages.Beat))
        ]

    def _input(self, verb: str, plain: list[str], options: dict[str, str]) -> Input:
        if verb == "interrupt":
            return Interrupt(options["reason"])
        if verb in ("full", "room"):
            holds_up = options.get("holds_up", "1") == "1"
            if verb == "full":
                return Noticed(StorageFailed(file=plain[0], free=0, holds_up=holds_up, reason="no space"))
            return Noticed(StorageRestored(file=plain[0], seconds=1.0, holds_up=holds_up, reason="it can be written"))
        if verb == "close":
            return Closed(self.clients[plain[0]], options.get("reason", ""))
        if verb == "published":
            removed = tuple(filter(None, options.get("removed", "").split(",")))
            return Published(plain[0], PublishOutcome(size=int(options.get("size", 200)), removed=removed))
        if verb == "unpublished":
            return PublishFailed(plain[0], options["reason"])
        if verb in ("join", "watch", "back"):
            return Arrived(*self._first(verb, plain, options))
        if verb in ("stop", "enlist", "fault"):
            client = plain[0] if plain else "launcher"
        else:
            client = "launcher" if verb in ("exit", "working") else f"worker-{plain[0]}"
        return Arrived(self.clients[client], self._message(verb, plain, options))

    def _first(self, verb: str, plain: list[str], options: dict[str, str]) -> tuple[int, ClientMessage]:
        name = options.pop("client", f"worker-{plain[0]}" if plain else "launcher")
        self.count += 1
        self.clients[name] = self.count
        fields: dict[str, Any] = {key: value(text) for key, text in options.items()}
        if plain:
            return self.count, join(int(plain[0]), **{"was_member": verb == "back"} | fields)
        is_launcher = bool(fields.get("launcher", 1))
        return self.count, messages.Watch(version=PROTOCOL_VERSION, is_launcher=is_launcher)

    def _message(self, verb: str, plain: list[str], options: dict[str, str]) -> ClientMessage:
        fields: dict[str, Any] = {key: value(text) for key, text in options.items()}
        if verb == "part":
            return part(int(plain[0]), failed=fields.pop("not", ""), **fields)
        if verb == "report":
            event = msgspec.convert({"kind": plain[1], **fields}, AnyEvent, strict=False)
            return messages.Report(events=(event,))
        if verb == "calls":
            return messages.Calls(first=fields["first"], calls=tuple(Made(ScriptCall.of(what)) for what in plain[1:]))
        if verb == "exit":
            return messages.ProcessExited(worker=int(plain[0]), reason="", **fields)
        if verb == "enlist":
            return messages.Enlist()
        if verb == "fault":
            return messages.Inject(worker=fields["worker"], fault="cut", seconds=5.0)
        if verb == "working":
            return messages.ProcessWorking(worker=int(plain[0]))
        kind: type[Any] = {
            "beat": messages.Heartbeat,
            "broken": messages.ExchangeBroken,
            "done": messages.Done,
            "failed": messages.Failed,
            "leave": messages.Leave,
            "ready": messages.Ready,
            "stop": messages.StopRequest,
            "unanswered": messages.Unanswered,
        }[verb]
        names = kind.__struct_fields__
        lists = {name: _numbers(options[name]) for name in ("unreachable", "late") if name in options}
        fields = {name: bool(value) if name.startswith("is_") else value for name, value in fields.items()}
        if verb == "done":
            fields.setdefault("reason", "the script is done")
        if verb == "broken":
            fields.setdefault("holds", fields.get("generation", 1))
            fields = {name: fields[name] for name in fields if name not in lists} | {"unreached": Unreached(**lists)}
        else:
            fields |= lists
        return kind(**{name: MISSING[name] for name in names if name in MISSING} | fields)  # type: ignore[no-any-return]  # one of those above

    def _text(self, instruction: Instruction) -> str:
        names = {number: name for name, number in self.clients.items()}
        match instruction:
            case Send(clients, message):
                return f"to {', '.join(names[client] for client in clients)}: {as_text(message)}"
            case WriteDecision(decision):
                return f"decided {decision_text(decision)}"
            case RecordEvent(event, _):
                return f"note {as_text(event)}"
            case CatchUp(client):
                return f"catch up {names[client]}"
            case Close(client):
                return f"close {names[client]}"
            case Publish(request):
                mark = f" marked {request.mark}" if request.mark else ""
                return f"publish {request.checkpoint} of {', '.join(request.files)}{mark}"
            case DiscardCheckpoint(checkpoint):
                return f"discard {checkpoint}"
            case End(exit_code):
                return f"end with exit code {exit_code}"


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


def as_text(value: msgspec.Struct) -> str:
    """The name on the wire and the fields that tell something."""
    shown = []
    for name in value.__struct_fields__:
        field = getattr(value, name)
        if isinstance(field, Generation):
            shown.append(generation_text(field, in_full=not isinstance(value, messages.Welcome)))
        elif name == "calls":
            shown.append(f"calls={json.dumps([made.call.what for made in field])}")
        elif name == "seconds":
            shown.append(f"seconds={field:.1f}")
        elif isinstance(value, messages.Welcome) and not field:
            continue
        elif name != "config" and not (field is False and isinstance(value, WorkerLeft)):
            shown.append(f"{name}={json.dumps(field)}")
    return " ".join([str(value.__struct_config__.tag), *shown])


def decision_text(decision: Decision) -> str:
    """Enough to know which: the instructions around it say the rest."""
    match decision:
        case NumberGiven(worker):
            return f"number {worker}"
        case GenerationDecided(generation):
            return f"generation {generation.number}"
        case CheckpointDecided(checkpoint, is_published):
            return f"{checkpoint} {'published' if is_published else 'lost'}"
        case FailureCounted(text):
            return f"failure {json.dumps(text)}"
        case MemberLeft(worker, is_handover, runs_on):
            return f"worker {worker} {'handed over' if is_handover else 'runs on' if runs_on else 'finished'}"
        case MembersReleased(finished):
            return f"all are released, finished {list(finished)}"
        case StopDecided():
            return "stop"
        case EndDecided(exit_code):
            return f"end with exit code {exit_code}"


def generation_text(generation: Generation, *, in_full: bool) -> str:
    if not in_full:
        return f"generation={generation.number}"
    members = " ".join(
        f"{member.rank}:{member.worker}" + (f" share {member.share}" if member.share != 1 else "")
        for member in generation.members
    )
    holders = f" holders {list(generation.holders)}" if generation.holders else ""
    lost = ", ".join(f"{one.worker} of {one.generation} at {one.point}" for one in generation.lost if one.point)
    losses = f" lost [{lost}]" if lost else ""
    return f"{generation.number} ranks [{members}]{holders}{losses} {json.dumps(generation.reason)}"
