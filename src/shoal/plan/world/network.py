"""A simulated network: ordered streams between endpoints, with delay, loss, cuts, resets and machines that vanish.

A stream behaves as TCP does: bytes arrive in order or not at all; a loss on the way shows as a broken connection some
time later, not as a gap; a cut that heals in time is only a delay. Endpoints are names: worker numbers,
the coordinator, the launcher. Not here: what is said (`wire.messages`), which links are cut (`links`), and when
(`faults`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from shoal.plan.world.links import LinkCuts
from shoal.plan.world.virtual_time import Process, VirtualTime

COORDINATOR = -1
LAUNCHER = -2
MANY_ENDS = 64  # with more streams than this at an endpoint, closed ones are cleared away
CLOSED = object()  # the last message of a stream that is closed in order

Accept = Callable[["StreamEnd", Any], None]


class StreamEnd:
    """One side of a stream. Messages are handed over in the owner's process, as soon as it listens."""

    def __init__(self, network: Network, owner: Process, here: int, there: int) -> None:
        self.is_open = True  # from this side's view
        self.other: StreamEnd = self
        self.here = here
        self.there = there
        self._network = network
        self._owner = owner
        self._on_message: Callable[[Any], None] | None = None
        self._on_closed: Callable[[], None] | None = None
        self._unread: list[Any] = []  # messages that arrived before the owner listened
        self._due = 0.0  # when the newest message from here arrives
        self.held: list[Any] = []  # sent from here, kept back by a cut link
        self.is_dead_letter = False  # messages from here do not arrive any more

    def listen(self, on_message: Callable[[Any], None], on_closed: Callable[[], None]) -> None:
        self._on_message, self._on_closed = on_message, on_closed
        unread, self._unread = self._unread, []
        for message in unread:
            on_message(message)
        if not self.is_open:
            on_closed()

    def open_after(self, seconds: float) -> None:
        """From now on no message arrives before these seconds are over."""
        self._due = self._network.time.now + seconds

    def send(self, message: Any) -> None:
        if not self.is_open:
            return
        network = self._network
        if network.loss and network.time.chance(network.loss) and not self._is_near:
            self.fail_later()
            return
        self._due = max(self._due, network.time.now + self.delay())
        network.time.at(self._due, lambda: self._arrive(message))

    @property
    def _is_near(self) -> bool:
        """The launcher is on the coordinator's machine: faults of the network do not touch this stream."""
        return LAUNCHER in (self.here, self.there)

    def delay(self) -> float:
        return self._network.latency() * (1.0 if self._is_near else self._network.slowness)

    def _arrive(self, message: Any) -> None:
        """At the other side, unless the link is cut just now."""
        if self.is_dead_letter:
            return
        if self.held or self._network.links.is_cut(self.here, self.there):
            if not self.held:
                self._network.hold(self)
            self.held.append(message)
        elif message is CLOSED:
            self.other.broken()
        else:
            self.other.received(message)

    def release(self) -> None:
        """The link is there again."""
        held, self.held = self.held, []
        for message in held:
            self._arrive(message)

    def received(self, message: Any) -> None:
        self._owner.do(lambda: self._read(message))

    def _read(self, message: Any) -> None:
        if self._on_message is None:
            self._unread.append(message)
        elif self.is_open:
            self._on_message(message)

    def broken(self) -> None:
        """Messages that have arrived are read first."""
        self._owner.do(self._break)

    def _break(self) -> None:
        if self.is_open:
            self.is_open = False
            if self.other.is_open:  # the other side learns it when it next sends, at the latest
                self.is_dead_letter = True
                self._tell_other()
            if self._on_closed is not None:
                self._on_closed()

    def _tell_other(self) -> None:
        network = self._network
        is_cut = network.links.is_cut(self.here, self.there)
        delay = network.patience() if is_cut else self.delay()
        network.time.after(delay, self.other.broken)

    def close(self, *, abruptly: bool = False, word: Any = None) -> None:
        """In order: messages on their way arrive first. Abruptly (a reset): they may not. A last word arrives."""
        if not self.is_open:
            return
        if abruptly:
            self.is_dead_letter = True
            self._network.time.after(self.delay(), lambda: self.other.cut_short(word))
        else:
            if word is not None:
                self.send(word)
            self.send(CLOSED)
        self.is_open = False

    def cut_short(self, word: Any) -> None:
        """By the other side."""
        if word is not None and not self._network.links.is_cut(self.there, self.here):
            self.received(word)
        self.broken()

    def fail_later(self) -> None:
        """Stop both directions; each side finds out when its own patience is over."""
        for end in (self, self.other):
            end.is_dead_letter = True
            self._network.time.after(self._network.patience(), end.broken)


class Network:
    def __init__(
        self, time: VirtualTime, *, patience: float, host_of: Callable[[int], int] = lambda endpoint: endpoint
    ) -> None:
        """`patience`: about how many seconds a side keeps sending without an answer. `host_of`: where endpoints are."""
        self.time = time
        self.links = LinkCuts(time, host_of)
        self.links.on_mended = self._release
        self.loss = 0.0  # probability that a message breaks its stream
        self.slowness = 1.0  # factor on delays
        self._patience = patience
        self._listeners: dict[int, tuple[Process, Accept]] = {}
        self._ends: dict[int, list[StreamEnd]] = {}  # by endpoint, for machines that vanish
        self._holding: list[StreamEnd] = []  # streams that wait for a link

    def latency(self) -> float:
        """Mostly under 2 ms, now and then a hundred times that."""
        seconds = 0.0003 + 0.0015 * self.time.random.random()
        if self.time.chance(0.01):
            seconds *= 100 * self.time.random.random()
        return seconds

    def patience(self) -> float:
        return self.time.between(0.3, 1.5) * self._patience

    # Links

    def _release(self) -> None:
        """A cut is over: streams that waited for nothing else go on."""
        waiting, self._holding = self._holding, []
        for end in waiting:
            if self.links.is_cut(end.here, end.there):
                self._holding.append(end)
            else:
                end.release()

    def hold(self, end: StreamEnd) -> None:
        """A stream waits at a cut link: if the cut lasts, the connection breaks at both ends."""
        self._holding.append(end)
        for side in (end, end.other):
            self.time.after(self.patience(), partial(_break_if_held, side, end))

    def reset(self, endpoint: int, other: int) -> None:
        """Break all streams between the two now; messages on their way are lost."""
        for end in self._live_ends(endpoint):
            if end.there == other:
                end.is_dead_letter = end.other.is_dead_letter = True
                end.broken()
                end.other.broken()

    # Streams

    def listen(self, name: int, process: Process, accept: Accept) -> None:
        self._listeners[name] = (process, accept)

    def listens(self, name: int) -> bool:
        listener = self._listeners.get(name)
        return listener is not None and listener[0].is_alive

    def connect(self, here: int, process: Process, there: int, hello: Any) -> StreamEnd | None:
        """A stream to the listener there, which gets `hello`; None if nobody listens or the link is cut."""
        listener = self._listeners.get(there)
        if not self.links.answers(here, there) or listener is None or not listener[0].is_alive:
            return None
        mine, its = StreamEnd(self, process, here, there), StreamEnd(self, listener[0], there, here)
        mine.other, its.other = its, mine
        for end in (mine, its):
            ends = self._ends.setdefault(end.here, [])
            ends.append(end)
            if len(ends) > MANY_ENDS:
                self._live_ends(end.here)
        delay = mine.delay()
        mine.open_after(delay)
        self.time.after(delay, lambda: listener[0].do(lambda: listener[1](its, hello)))
        return mine

    def process_died(self, name: int) -> None:
        """A process died: its kernel closes its streams, some in order, some by a reset."""
        for end in self._live_ends(name):
            end.close(abruptly=self.time.chance(0.4))
        self._ends.pop(name, None)

    def machine_died(self, name: int) -> None:
        """A machine vanished and closes nothing: the other sides find out when their patience is over."""
        self.links.vanished(name)
        for end in self._live_ends(name):
            end.fail_later()
            end.is_open = False
        self._ends.pop(name, None)

    def _live_ends(self, name: int) -> list[StreamEnd]:
        live = [end for end in self._ends.get(name, []) if end.is_open]
        self._ends[name] = live
        return list(live)


def _break_if_held(side: StreamEnd, end: StreamEnd) -> None:
    if end.held:
        side.broken()
