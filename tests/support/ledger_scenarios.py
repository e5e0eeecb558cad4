"""Scenario files about a job's ledger on its servers: the live sequencers and ledgers, with messages that go at once.

    servers N... [replicas=N]           servers start and hear the first map
    map N... [after=[N,...]] [deaf=[N,...]]   the next map: whom it names, who of them stays, who does not hear of it
    tell N                              a server that was deaf hears the newest map
    start N                             a server starts, with nothing
    kill N                              it dies, with everything that it has
    cut N... [way=in]                   messages to and from these servers are lost; `in`: only those to them
    mend N...                           they have new connections to all
    enrol WORKER generation=N workers=[N,...] [mode=synchronous] [staleness=N]
    loop WORKER samples=N update=N [epochs=N] [number=N]   a loop over data begins
    lease WORKER updates=N [meetings=N] [holds=[[epoch,start,stop],...]]
    push WORKER [step=N] [used=[[epoch,start,stop],...]] [view=N] [read=N]
    assign WORKER                       first values
    meeting WORKER reason=TEXT [meetings=N]   all are called to a meeting
    withdraw WORKER step=N [generation=N]
    ask WORKER                          where is the loop?
    again WORKER                        its newest request once more
    read WORKER [meetings=N]            may the worker read values now, by the ledger of each server?
    ledgers                             how far every server is

Requests go to home; `to=N` sends one to another server, `knows=N` names the version of the map that the worker knows,
`generation=N` the generation that it speaks of. What all servers do alike is one line.
"""

from __future__ import annotations

import shlex
from typing import Any

import msgspec

from shoal.parameters.ledger.effects import Begun, Drop, LedgerEnded, Replace, Update
from shoal.parameters.ledger.sequencer import (
    AnyRecord,
    Installed,
    Instruction,
    Redirect,
    SendToServer,
    SendToWorker,
    Sequencer,
)
from shoal.values import Address, Server, ServerMap
from shoal.wire import ledger_entries as entries
from shoal.wire.ledger_entries import AnyAnswer, AnyEntry
from shoal.wire.parameter_messages import EntryRecord, LedgerCopy, Recorded
from shoal.wire.tables import LoopTerms, PushId, PushTerms, Range
from support.scenarios import value

GROUPS = (({"lr": 0.1},),)
DEFAULTS = {"generation", "to", "knows"}


class Scenario:
    """One replay: servers, what workers have asked, and the lines that a command has led to."""

    def __init__(self) -> None:
        self.servers: dict[int, Sequencer] = {}
        self.map: ServerMap | None = None
        self.replicas = 2
        self.cut_in: set[int] = set()  # messages to these are lost
        self.cut_out: set[int] = set()  # messages from these are lost
        self.requests: dict[int, AnyEntry] = {}  # the newest of each worker
        self.counts: dict[int, int] = {}  # requests of each worker
        self.generation = 0
        self.lines: list[str] = []
        self.acts: dict[str, list[int]] = {}  # what servers do, by text

    def run(self, command: str) -> list[str]:
        verb, *words = shlex.split(command)
        options: dict[str, Any] = {}
        for word in words:
            if "=" in word:
                name, text = word.split("=", 1)
                options[name] = value(text)
        plain = [int(word) for word in words if "=" not in word]
        self.lines, self.acts = [], {}
        if verb in ("servers", "map", "tell", "start", "kill", "cut", "mend", "ledgers"):
            getattr(self, f"_{verb}")(plain, options)
        elif verb == "read":
            self._read(plain[0], options.get("meetings", 0))
        else:
            self._request(verb, plain[0], options)
        acts = [f"server {', '.join(map(str, sorted(who)))}: {what}" for what, who in self.acts.items()]
        return self.lines + acts

    # Servers

    def _servers(self, numbers: list[int], options: dict[str, Any]) -> None:
        self.replicas = options.get("replicas", 2)
        self._start(numbers, {})
        self._map(numbers, {})

    def _map(self, numbers: list[int], options: dict[str, Any]) -> None:
        servers = tuple(Server(number, Address("host", 1), "host", number) for number in numbers)
        version = 1 if self.map is None else self.map.version + 1
        after = tuple(options.get("after", numbers))
        self.map = ServerMap(version, servers, tuple(numbers), after, self.replicas)
        self._tell([number for number in self.servers if number not in options.get("deaf", ())], {})

    def _tell(self, numbers: list[int], _: dict[str, Any]) -> None:
        assert self.map is not None
        for number in numbers:
            self._do(number, self.servers[number].new_map(self.map))

    def _start(self, numbers: list[int], _: dict[str, Any]) -> None:
        self.servers |= {number: Sequencer("job", number) for number in numbers}

    def _kill(self, numbers: list[int], _: dict[str, Any]) -> None:
        for number in numbers:
            del self.servers[number]

    def _cut(self, numbers: list[int], options: dict[str, Any]) -> None:
        self.cut_in |= set(numbers)
        if options.get("way") != "in":
            self.cut_out |= set(numbers)

    def _mend(self, numbers: list[int], _: dict[str, Any]) -> None:
        self.cut_in -= set(numbers)
        self.cut_out -= set(numbers)
        for one in sorted(self.servers):
            for other in sorted(self.servers):
                if one != other and {one, other} & set(numbers):
                    self._do(one, self.servers[one].connected(other))

    def _ledgers(self, _: list[int], __: dict[str, Any]) -> None:
        known = {number: sequencer.ledger for number, sequencer in sorted(self.servers.items())}
        for number, ledger in known.items():
            if ledger is None:
                self.lines.append(f"server {number}: none")
                continue
            same = [other for other, its in known.items() if other < number and its == ledger]
            equal = f", equal to that of server {same[0]}" if same else ""
            self.lines.append(f"server {number}: up to entry {ledger.number}, {ledger.updates} updates{equal}")

    def _read(self, worker: int, meetings: int) -> None:
        for number, sequencer in sorted(self.servers.items()):
            if sequencer.ledger is not None:
                self._act(number, f"worker {worker} may read: {sequencer.ledger.may_read(worker, meetings).value}")

    # Workers

    def _request(self, verb: str, worker: int, options: dict[str, Any]) -> None:
        assert self.map is not None
        to, view = options.get("to", self.map.home.number), options.get("knows", self.map.version)
        if verb != "again":
            self.counts[worker] = self.counts.get(worker, 0) + 1
            fields = {name: given for name, given in options.items() if name not in DEFAULTS}
            generation = options.get("generation", self.generation)
            self.requests[worker] = self._entry(verb, worker, generation, fields)
        if verb == "enrol":
            self.generation = max(self.generation, options["generation"])
        self._do(to, self.servers[to].proposed(self.requests[worker], view))

    def _entry(self, verb: str, worker: int, generation: int, fields: dict[str, Any]) -> AnyEntry:
        assert self.map is not None
        who: dict[str, Any] = {"worker": worker, "request": self.counts[worker]}
        if verb == "ask":
            return entries.Ask(**who)
        who["generation"] = generation
        if verb == "enrol":
            workers = tuple(fields.pop("workers"))
            return entries.Enrol(**who, workers=workers, **{"mode": "asynchronous", **fields})
        if verb == "loop":
            number, epochs = fields.pop("number", 1), fields.pop("epochs", 1)
            return entries.OpenLoop(**who, terms=LoopTerms(loop=number, first_epoch=0, epochs=epochs, **fields))
        if verb == "lease":
            holds = _ranges(fields.pop("holds", []))
            return entries.Lease(**who, loop=fields.pop("loop", 1), holds=holds, **fields)
        if verb == "meeting":
            return entries.Call(**who, **fields)
        if verb == "withdraw":
            return entries.Withdraw(**who, **fields)
        staged = {"view": fields.pop("view", self.map.version), "push": PushId(worker, self.counts[worker])}
        if verb == "assign":
            return entries.Assign(**who, **staged, updates=0)
        assert verb == "push", f"no such command: {verb}"
        terms = PushTerms(groups=GROUPS, read=fields.pop("read", 0))
        return entries.Push(**who, **staged, terms=terms, used=_ranges(fields.pop("used", [])), **fields)

    # What sequencers want done

    def _do(self, number: int, instructions: list[Instruction]) -> None:
        for each in instructions:
            if isinstance(each, SendToServer):
                self._send(number, each)
            elif isinstance(each, SendToWorker):
                self.lines.append(f"server {number} to worker {each.worker}: {_answer_text(each.answer)}")
            elif isinstance(each, Redirect):
                self.lines.append(f"server {number} to worker {each.worker}: not home, learn of the present map")
            else:
                self._act(number, _effect_text(each))

    def _send(self, number: int, send: SendToServer) -> None:
        is_lost = number in self.cut_out or send.server in self.cut_in or send.server not in self.servers
        lost = " (lost)" if is_lost else ""
        self.lines.append(f"server {number} to server {send.server}: {_note_text(send.note)}{lost}")
        if not is_lost:
            self._do(send.server, self.servers[send.server].heard(number, send.note, send.payload))

    def _act(self, number: int, what: str) -> None:
        self.acts.setdefault(what, []).append(number)


def _ranges(given: list[list[int]]) -> tuple[Range, ...]:
    return tuple(Range(*each) for each in given)


def _note_text(note: AnyRecord) -> str:
    if isinstance(note, EntryRecord):
        whose = "" if isinstance(note.entry, entries.Begin) else f" of worker {note.entry.worker}"
        return f"record entry {note.number}, {note.entry.__struct_config__.tag}{whose}"
    if isinstance(note, Recorded):
        return f"has everything up to entry {note.number}"
    if isinstance(note, LedgerCopy):
        return f"copy of the ledger up to entry {note.number}"
    if note.number < 0:
        return f"has no ledger, in view {note.view}"
    numbers = [number for number, _ in note.entries]
    return f"has everything up to entry {note.number} and can pass on {numbers}, in view {note.view}"


def _effect_text(effect: Installed | Update | Replace | Drop | Begun | LedgerEnded | Any) -> str:
    if isinstance(effect, Installed):
        return f"takes the copy up to entry {effect.number}" + (", out of date" if effect.had_one else "")
    if isinstance(effect, Update):
        return f"update {effect.updates} by entry {effect.number} with {_pushes(effect.pushes)}"
    if isinstance(effect, Replace):
        return f"new values by entry {effect.number} from {_pushes((effect.push,))}"
    if isinstance(effect, Drop):
        return f"drop {_pushes(effect.pushes)}"
    if isinstance(effect, Begun):
        return f"view {effect.view} begins with entry {effect.number}"
    return f"the job ends at entry {effect.number}: {effect.reason}"


def _pushes(pushes: tuple[PushId, ...]) -> str:
    return " and ".join(f"push {push.number} of worker {push.worker}" for push in pushes)


def _answer_text(answer: AnyAnswer) -> str:
    """The answer's kind, and its fields that say more than their defaults."""
    shown = []
    for field in msgspec.structs.fields(type(answer)):
        given = getattr(answer, field.name)
        if field.name != "number" and (field.required or given != field.default):
            shown.append(f"{field.name}={_words(given)}")
    return " ".join([str(answer.__struct_config__.tag), *shown])


def _words(given: object) -> str:
    if isinstance(given, Range):
        return f"{given.epoch}:{given.start}-{given.stop}"
    if isinstance(given, tuple):
        return "[" + ", ".join(map(_words, given)) + "]"
    return msgspec.json.encode(given).decode()
