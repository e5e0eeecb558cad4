"""What the parts of a worker's client share: the layout of the present map, numbered requests, waiting, interruption.

An *activity* is something under way: a push that is staged, a pull, a proposal. It is pumped whenever there may be
something to send: when it begins, when a server can be asked (again), when the map has changed. All of it is guarded by
the thread's lock.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Protocol, TypeVar

from shoal.errors import Aborted, ParametersLost, ServerRefused, ServersLost, ShoalError
from shoal.parameters.blocks.block_codec import BlockCodec
from shoal.parameters.client.client_layout import ClientLayout
from shoal.parameters.client.client_memory import StagingMemory
from shoal.parameters.client.client_servers import ClientConfig, ServerLink, ServerLinks
from shoal.parameters.client.client_thread import ClientThread
from shoal.parameters.client.lineage import Lineage
from shoal.wire.parameter_messages import Answered, AnyNote, KeyList, Moved, PushReleased, Refusal, StageEnd
from shoal.wire.tables import TableSpec

LOOK_SECONDS = 0.25  # how often a wait looks for what nobody tells: that too much time has passed
AGAIN_SECONDS = 0.05  # before a server that did not know the newest map yet is asked again

Value = TypeVar("Value")


class Activity(Protocol):
    failure: ShoalError | None  # why it will not succeed

    def pump(self) -> None:
        """Send what can be sent and was not sent yet; what was sent by another map, or was lost, again."""

    def room(self, link: ServerLink, note: AnyNote, size: int) -> memoryview | None:
        """Where the payload of an answer goes."""

    def heard(self, link: ServerLink, note: AnyNote, payload: memoryview | None) -> None:
        """The answer to a request that the activity numbered."""

    def forget(self, link: ServerLink, request: int) -> None:
        """The server could not answer: it does not know the present map yet. To be asked again at the next pump."""


class ClientCore:
    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self.thread = ClientThread(f"shoal-parameters-{config.worker}")
        self.links = ServerLinks(config, self.thread, self)
        self.table: TableSpec | None = None
        self.codec: BlockCodec | None = None  # encodes what other machines' servers are sent; None: nothing does
        self.layout: ClientLayout | None = None  # of the present map
        self.memory: StagingMemory | None = None
        self.epoch = 0  # counts interruptions: what began before one is dead
        self._interruption: str | None = None
        self._is_closed = False
        self.lineage = Lineage()
        self._numbers = itertools.count(1)
        self._activities: list[Activity] = []
        self._requests: dict[int, Activity] = {}

    # For activities and for the script's thread, with the lock held

    def number_for(self, activity: Activity) -> int:
        """A new request's number; its answer will be the activity's."""
        number = next(self._numbers)
        self._requests[number] = activity
        return number

    def begin(self, activity: Activity) -> None:
        if self.lineage.is_lost:  # nothing may have been under way that could fail when that was heard
            activity.failure = activity.failure or ParametersLost.all()
        self._activities.append(activity)
        self.thread.do(activity.pump)

    def end(self, activity: Activity) -> None:
        if activity in self._activities:
            self._activities.remove(activity)
        self._requests = {number: other for number, other in self._requests.items() if other is not activity}

    def is_far(self, server: int) -> bool:
        """It reads nothing from this machine's memory, as far as is known: of one that was never heard nothing is."""
        link = self.links.links.get(server)
        return link is None or not link.sees_arena

    def introduce(self, link: ServerLink, layout: ClientLayout) -> bytes:
        """The digest of the server's key list, which it knows from now on."""
        digest = layout.digests[link.server.number]
        if digest not in link.key_lists:
            link.key_lists.add(digest)
            link.send(KeyList(digest=digest, blocks=layout.parts[link.server.number].blocks))
        return digest

    # Waiting, in the script's thread

    def wait_for(self, look: Callable[[], Value | None], activity: Activity | None = None) -> Value:
        """What `look` finds, as soon as it does. Raises when it cannot be waited for any longer."""
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
        """Raise if there is no sense in waiting."""
        if self._is_closed:
            raise Aborted("the connection to the parameter servers is closed")
        if self._interruption is not None or epoch != self.epoch:
            raise Aborted(self._interruption or "it was interrupted before")
        if self.thread.failure is not None:
            raise ShoalError(f"the thread of worker {self.config.worker}'s client ended") from self.thread.failure
        if self.links.failure is not None:
            raise self.links.failure
        if self.links.broken_seconds > self.config.lost_after:
            raise ServersLost(
                f"worker {self.config.worker} has had no whole set of parameter servers for "
                f"{self.config.lost_after:g} s; last trouble: {self.links.trouble}"
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
            self.links.cease()
            self.thread.changed.notify_all()
        self.thread.close()
        if self.memory is not None:
            self.memory.close()

    # What connections tell (`client_servers.Owner`)

    @property
    def is_waiting(self) -> bool:
        return bool(self._activities)

    def map_changed(self) -> None:
        if self.links.map is None:
            return
        if self.lineage.map_changed(self.links.map):
            self._lose_all()
        if self.table is None:
            return
        self.layout = ClientLayout(self.table, self.links.map)
        if self.memory is not None:
            self.memory.keep_readers({server.number for server in self.links.map.servers})
        self._pump()

    def link_ready(self, link: ServerLink, origin: int) -> None:
        if self.lineage.heard_origin(origin):
            self._lose_all()
        # What it said on an earlier connection may be lost: whether it still reads what was staged there.
        for slot in self.memory.owed_by(link.server.number) if self.memory is not None else ():
            if slot.push is not None and slot.layout is not None:
                link.send(StageEnd(request=0, push=slot.push, view=slot.layout.version, size=0))
        self._pump()

    def room(self, link: ServerLink, note: AnyNote, size: int) -> memoryview | None:
        activity = self._requests.get(getattr(note, "request", 0))
        return None if activity is None else activity.room(link, note, size)

    def heard(self, link: ServerLink, note: AnyNote, payload: memoryview | None) -> None:
        if isinstance(note, PushReleased):
            if self.memory is not None:
                self.memory.released(note.push, link.server.number)
        elif isinstance(note, Refusal):
            self._refused(link, note)
        elif isinstance(note, Moved):
            self._moved(link, note)
        else:
            number = note.answer.request if isinstance(note, Answered) else getattr(note, "request", 0)
            activity = self._requests.get(number)
            if activity is not None:
                activity.heard(link, note, payload)
        self.thread.changed.notify_all()

    def _refused(self, link: ServerLink, note: Refusal) -> None:
        who = f"server {link.server.number}"
        error = (
            ParametersLost(f"{who}: {note.reason}")
            if note.kind == "lost"
            else ServerRefused(f"{who}: {note.reason}", kind=note.kind)
        )
        blamed = self._requests.get(note.request)
        for activity in [blamed] if blamed is not None else () if note.request else self._activities:
            activity.failure = activity.failure or error

    def _moved(self, link: ServerLink, note: Moved) -> None:
        """A newer map was taken over already. Otherwise the server is behind.

        The number stays the activity's: proposals keep theirs, and may have been sent again under it by now.
        """
        activity = self._requests.get(note.request)
        if activity is not None:
            activity.forget(link, note.request)
            self.thread.later(AGAIN_SECONDS, self._pump)

    def _lose_all(self) -> None:
        lost = ParametersLost.all()
        for activity in self._activities:
            activity.failure = activity.failure or lost
        self.thread.changed.notify_all()

    def _pump(self) -> None:
        for activity in tuple(self._activities):
            activity.pump()
