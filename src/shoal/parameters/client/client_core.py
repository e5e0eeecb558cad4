"""What the parts of a worker's client share: the layout of the present map, numbered requests, waiting, interruption.

An *activity* is something under way: a push that is staged, a pull, a proposal. It is pumped whenever there may be
something to send: when it begins, when a server can be asked (again), when the map has changed. The thread's lock
guards all of this state.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Protocol, TypeVar

from shoal.errors import Aborted, ParametersLost, ServerRefused, ServersLost, ShoalError
from shoal.parameters.blocks.block_codec import BlockCodec
from shoal.parameters.client.client_layout import ClientLayout
from shoal.parameters.client.client_memory import StagingMemory
from shoal.parameters.client.client_servers import ClientConfig, ServerLine, ServerLines
from shoal.parameters.client.client_thread import ClientThread
from shoal.parameters.client.lineage import Lineage
from shoal.wire.parameter_messages import Answered, AnyNote, KeyList, Moved, PushReleased, Refusal, StageEnd
from shoal.wire.tables import TableSpec

LOOK_SECONDS = 0.25  # how often a wait checks for what no notification announces: that too much time has passed
AGAIN_SECONDS = 0.05  # delay before asking again a server that did not know the newest map yet

Value = TypeVar("Value")


class Activity(Protocol):
    failure: ShoalError | None  # why it will not succeed

    def pump(self) -> None:
        """Send everything that can be sent now; send again what was sent under another map or was lost."""

    def room(self, line: ServerLine, note: AnyNote, size: int) -> memoryview | None:
        """Memory for the payload of an answer."""

    def heard(self, line: ServerLine, note: AnyNote, payload: memoryview | None) -> None:
        """The answer to a request that the activity numbered."""

    def forget(self, line: ServerLine, request: int) -> None:
        """The server does not know the present map yet, so it could not answer. Ask again at the next pump."""


class ClientCore:
    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self.thread = ClientThread(f"shoal-parameters-{config.worker}")
        self.lines = ServerLines(config, self.thread, self)
        self.table: TableSpec | None = None
        self.codec: BlockCodec | None = None  # encodes what is sent to servers on other machines; None: plain bytes
        self.layout: ClientLayout | None = None  # of the present map
        self.memory: StagingMemory | None = None
        self.epoch = 0  # counts interruptions: an activity that began before one is dead
        self._interruption: str | None = None
        self._is_closed = False
        self.lineage = Lineage()
        self._numbers = itertools.count(1)
        self._activities: list[Activity] = []
        self._requests: dict[int, Activity] = {}

    # For activities and for the script's thread, with the lock held

    def number_for(self, activity: Activity) -> int:
        """The number of a new request; its answer goes to the activity."""
        number = next(self._numbers)
        self._requests[number] = activity
        return number

    def begin(self, activity: Activity) -> None:
        if self.lineage.is_lost:  # the loss failed only the activities that were under way then
            activity.failure = activity.failure or ParametersLost.all()
            return  # servers of the next ledger are not asked: their answer might come before the failure is seen
        self._activities.append(activity)
        self.thread.do(activity.pump)

    def end(self, activity: Activity) -> None:
        if activity in self._activities:
            self._activities.remove(activity)
        self._requests = {number: other for number, other in self._requests.items() if other is not activity}

    def is_far(self, server: int) -> bool:
        """The server is not known to read this machine's memory. A server that was never connected counts as far."""
        line = self.lines.lines.get(server)
        return line is None or not line.sees_arena

    def introduce(self, line: ServerLine, layout: ClientLayout) -> bytes:
        """The digest of the server's key list; sends the list first if this connection has not carried it."""
        digest = layout.digests[line.server.number]
        if digest not in line.key_lists:
            line.key_lists.add(digest)
            line.send(KeyList(digest=digest, blocks=layout.parts[line.server.number].blocks))
        return digest

    # Waiting, in the script's thread

    def wait_for(self, look: Callable[[], Value | None], activity: Activity | None = None) -> Value:
        """Wait until `look` finds something and return it. Raises when waiting has become pointless."""
        with self.thread.changed:
            epoch = self.epoch
            self.check(epoch)
            while True:
                found = look()
                if found is not None:
                    return found
                if activity is not None and activity.failure is not None:
                    raise activity.failure
                self.check(epoch)
                self.thread.changed.wait(LOOK_SECONDS)

    def check(self, epoch: int) -> None:
        """Raise if waiting is pointless."""
        if self._is_closed:
            raise Aborted("the connection to the parameter servers is closed")
        if self._interruption is not None or epoch != self.epoch:
            raise Aborted(self._interruption or "it was interrupted before")
        if self.thread.failure is not None:
            raise ShoalError(f"the thread of worker {self.config.worker}'s client ended") from self.thread.failure
        if self.lines.failure is not None:
            raise self.lines.failure
        if self.lines.broken_seconds > self.config.lost_after:
            raise ServersLost(
                f"worker {self.config.worker} has had no whole set of parameter servers for "
                f"{self.config.lost_after:g} s; last trouble: {self.lines.trouble}"
            )

    def interrupt(self, reason: str) -> None:
        with self.thread.changed:
            self.epoch += 1
            self._interruption = reason
            self.thread.changed.notify_all()

    def resume(self) -> None:
        with self.thread.changed:
            self._interruption = None

    def close(self) -> None:
        with self.thread.changed:
            if self._is_closed:
                return
            self._is_closed = True
            self.lines.cease()
            self.thread.changed.notify_all()
        self.thread.close()
        if self.memory is not None:
            self.memory.close()

    # What connections tell (`client_servers.Owner`)

    @property
    def is_waiting(self) -> bool:
        return bool(self._activities)

    def map_changed(self) -> None:
        if self.lines.map is None:
            return
        if self.lineage.map_changed(self.lines.map):
            self._lose_all()
        if self.table is None:
            return
        self.layout = ClientLayout(self.table, self.lines.map)
        if self.memory is not None:
            self.memory.keep_readers({server.number for server in self.lines.map.servers})
        self._pump()

    def line_ready(self, line: ServerLine, origin: int) -> None:
        if self.lineage.heard_origin(origin):
            self._lose_all()
        # `PushReleased` may have been lost with an earlier connection: ask whether the server still reads the slot.
        for slot in self.memory.owed_by(line.server.number) if self.memory is not None else ():
            if slot.push is not None and slot.layout is not None:
                line.send(StageEnd(request=0, push=slot.push, view=slot.layout.version, size=0))
        self._pump()

    def room(self, line: ServerLine, note: AnyNote, size: int) -> memoryview | None:
        activity = self._requests.get(getattr(note, "request", 0))
        return None if activity is None else activity.room(line, note, size)

    def heard(self, line: ServerLine, note: AnyNote, payload: memoryview | None) -> None:
        if isinstance(note, PushReleased):
            if self.memory is not None:
                self.memory.released(note.push, line.server.number)
        elif isinstance(note, Refusal):
            self._refused(line, note)
        elif isinstance(note, Moved):
            self._moved(line, note)
        else:
            number = note.answer.request if isinstance(note, Answered) else getattr(note, "request", 0)
            activity = self._requests.get(number)
            if activity is not None:
                activity.heard(line, note, payload)
        self.thread.changed.notify_all()

    def _refused(self, line: ServerLine, note: Refusal) -> None:
        who = f"server {line.server.number}"
        error = (
            ParametersLost(f"{who}: {note.reason}")
            if note.kind == "lost"
            else ServerRefused(f"{who}: {note.reason}", kind=note.kind)
        )
        blamed = self._requests.get(note.request)
        for activity in [blamed] if blamed is not None else () if note.request else self._activities:
            activity.failure = activity.failure or error

    def _moved(self, line: ServerLine, note: Moved) -> None:
        """Ask again a server that is behind. If the server was ahead, its newer map has been adopted already.

        The request number still belongs to the activity: a proposal keeps its number, and may have been sent again.
        """
        activity = self._requests.get(note.request)
        if activity is not None:
            activity.forget(line, note.request)
            self.thread.later(AGAIN_SECONDS, self._pump)

    def _lose_all(self) -> None:
        lost = ParametersLost.all()
        for activity in self._activities:
            activity.failure = activity.failure or lost
        self.thread.changed.notify_all()

    def _pump(self) -> None:
        for activity in tuple(self._activities):
            activity.pump()
