"""Scenario files about the keeper of a server group: the live core, with clients that are only names.

group servers=N [replicas=N] [silence=SECONDS] [watchers=N]
server N [version=N] [client=NAME]  a server connects and joins; its client is server-N if not named
watch CLIENT job=JOB [key=JOB]      a worker connects, with the key of this job or of another
open JOB [key=TEXT]                 an administrator lets a job use the group
close JOB                           it ends that
remove N...                         it takes servers out
more N                              it asks for more servers
stop                                it asks for the end of the group
stray CLIENT [key=JOB]              a client sends what is not its to send
beat N [unreached=[N,...]]          a server's heartbeat
filled N [size=N] [view=N]          it holds all that is its, by the present map if no other is named
lost N job=JOB blocks=N size=N      it should hold blocks that no living server has
failed N job=JOB reason=TEXT        it cannot go on with a job
closed CLIENT [reason=TEXT]         a connection is gone
ended N reason=TEXT                 whoever started the servers saw one end
tick SECONDS [N...]                 so much time passes; these servers send heartbeats meanwhile
asleep SECONDS                      so much time passes in which the keeper itself does not run
"""

from __future__ import annotations

import dataclasses
import itertools
import shlex
from typing import Any

from shoal.parameters.connections.purposes import KEEPER_PURPOSE, keeper_job_purpose
from shoal.parameters.keeper.group_events import GroupEvent, MapMade
from shoal.parameters.keeper.keeper import TICK
from shoal.parameters.keeper.keeper_core import (
    Admit,
    Caller,
    KeeperCore,
    KeeperEvent,
    KeeperInstruction,
    Refuse,
    SendNews,
    SendNote,
)
from shoal.parameters.keeper.server_group import GroupSettings, ServerGroup
from shoal.parameters.keeper.space_terms import SpaceTerms
from shoal.values import Address, Server, ServerMap
from shoal.wire import keeper_messages as messages
from shoal.wire.note import PARAMETER_VERSION
from shoal.wire.parameter_messages import AnyNote, Refusal
from support.scenarios import value

SESSION = bytes(32)


class Scenario:
    """One replay: the core, names of clients, and the virtual time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.clients: dict[str, Caller] = {}
        self.count = itertools.count(1)  # of clients
        self.requests = 0

    def run(self, command: str) -> list[str]:
        verb, *words = shlex.split(command)
        options: dict[str, Any] = {}
        for word in words:
            if "=" in word:
                name, text = word.split("=", 1)
                options[name] = value(text)
        plain = [word for word in words if "=" not in word]
        if verb == "group":
            self.group = ServerGroup(GroupSettings(options["servers"], options.get("replicas", 1)))
            self.core = KeeperCore(self.group, options.get("silence", 1.5), options.get("watchers", 32))
            return []
        if verb == "tick":
            return self._tick(float(plain[0]), [int(word) for word in plain[1:]])
        if verb == "asleep":
            self.now += float(plain[0])
            return self._texts(self.core.look(self.now, max(0.0, float(plain[0]) - 2 * TICK)))
        if verb == "coming":
            return self._texts(self.core.announce(int(plain[0])))
        if verb == "ended":
            return self._texts(self.core.lose(int(plain[0]), options["reason"], self.now))
        if verb == "closed":
            reason = options.get("reason", "it closed the connection")
            return self._texts(self.core.closed(self.clients[plain[0]].client, reason, self.now))
        caller, note = self._said(verb, plain, options)
        return self._texts(self.core.heard(caller, note, self.now))

    def _tick(self, seconds: float, alive: list[int]) -> list[str]:
        lines = []
        for _ in range(round(seconds / TICK)):
            self.now += TICK
            for number in alive:
                beat = messages.ServerBeat(figures=messages.ServerFigures())
                lines += self._texts(self.core.heard(self.clients[f"server-{number}"], beat, self.now))
            lines += [f"{self.now:.2f} s: {line}" for line in self._texts(self.core.look(self.now, 0.0))]
        return lines

    # Events

    def _said(self, verb: str, plain: list[str], options: dict[str, Any]) -> tuple[Caller, AnyNote]:
        if verb == "server":
            number, version = int(plain[0]), options.pop("version", PARAMETER_VERSION)
            name = options.get("client", f"server-{number}")
            address = Address("127.0.0.1", 9)
            join = messages.ServerJoin(version=version, number=number, address=address, host="here", process=number)
            return self._caller(name, KEEPER_PURPOSE), join
        if verb == "watch":
            note = messages.WatchGroup(version=PARAMETER_VERSION, job=options["job"])
            return self._caller(plain[0], keeper_job_purpose(options.get("key", options["job"]))), note
        if verb == "stray":
            purpose = keeper_job_purpose(options["key"]) if "key" in options else KEEPER_PURPOSE
            return self.clients.get(plain[0]) or self._caller(plain[0], purpose), messages.Agreed(request=1)
        if verb in ("open", "close", "remove", "more", "stop"):
            self.requests += 1
            return self._caller("administrator", KEEPER_PURPOSE), self._request(verb, plain, options)
        return self.clients[f"server-{plain[0]}"], self._server_note(verb, options)

    def _caller(self, name: str, purpose: bytes) -> Caller:
        self.clients[name] = Caller(next(self.count), purpose, SESSION)
        return self.clients[name]

    def _request(self, verb: str, plain: list[str], options: dict[str, Any]) -> AnyNote:
        request = self.requests
        if verb == "open":
            terms = SpaceTerms(job=plain[0], key=options.get("key", "its key"))
            return messages.OpenSpace(request=request, space=terms.sealed(SESSION))
        if verb == "close":
            return messages.CloseSpace(request=request, job=plain[0])
        if verb == "remove":
            return messages.ChangeServers(request=request, remove=tuple(map(int, plain)))
        if verb == "more":
            return messages.ChangeServers(request=request, more=int(plain[0]))
        return messages.StopGroup(request=request)

    def _server_note(self, verb: str, options: dict[str, Any]) -> AnyNote:
        view = self.group.map.version if self.group.map is not None else 0
        if verb == "beat":
            return messages.ServerBeat(figures=messages.ServerFigures(), unreached=tuple(options.get("unreached", ())))
        if verb == "filled":
            return messages.Filled(**{"view": view, **options})
        if verb == "lost":
            return messages.Lost(view=view, **options)
        assert verb == "failed", f"no such command: {verb}"
        return messages.SpaceFailed(job=options["job"], end=messages.SpaceEnd(reason=options["reason"]))

    # Instructions

    def _texts(self, instructions: list[KeeperInstruction]) -> list[str]:
        return [self._text(each) for each in instructions if not isinstance(each, Admit)]

    def _text(self, instruction: KeeperInstruction) -> str:
        if isinstance(instruction, KeeperEvent):
            return f"happened: {_event_text(instruction.event)}"
        name = next(name for name, caller in self.clients.items() if caller.client == instruction.client)
        if isinstance(instruction, Refuse):
            return f"refuse {name} ({instruction.kind}): {instruction.reason}"
        if isinstance(instruction, SendNews):
            jobs = [f"{each.job} (ended: {each.end.reason})" if each.end else each.job for each in instruction.spaces]
            return f"to {name}: {_map_text(instruction.map)}, jobs [{', '.join(jobs)}]"
        assert isinstance(instruction, SendNote)
        return f"to {name}: {_note_text(instruction.note)}"


def _note_text(note: AnyNote) -> str:
    if isinstance(note, messages.GroupNews):
        return _map_text(note.map) + (f", {note.coming} coming" if note.coming else "")
    if isinstance(note, Refusal):
        return f"refused: {note.reason}"
    return str(note.__struct_config__.tag)


def _map_text(map_: ServerMap | None) -> str:
    if map_ is None:
        return "no map yet"
    servers = _numbers([server.number for server in map_.servers])
    if map_.is_settled:
        return f"map {map_.version} of servers {servers}, settled"
    return f"map {map_.version} of servers {servers}, from {_numbers(map_.before)} to {_numbers(map_.after)}"


def _numbers(numbers: tuple[int, ...] | list[int]) -> str:
    return "[" + ", ".join(map(str, numbers)) + "]"


def _event_text(event: GroupEvent) -> str:
    if isinstance(event, MapMade):
        moved = f", {event.size} bytes in {event.seconds:.2f} s" if event.size else ""
        return f"{_map_text(event.map)}{moved}: {event.map.reason}"
    shown = [f"{field.name}={_plain(getattr(event, field.name))}" for field in dataclasses.fields(event)]
    return " ".join([type(event).__name__, *shown])


def _plain(given: object) -> str:
    return str(given.number) if isinstance(given, Server) else repr(given)
