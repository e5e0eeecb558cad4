"""A simulated worker's connection to the coordinator. Stands for the thread of `membership.client`.

Live code reads the coordinator's messages and decides what to repeat after a broken connection (`heard` and `outbox` in
`membership.member`). This module has what surrounds it: heartbeats, connecting again with Join and the worker's
generation, and the time at which the coordinator was last heard.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shoal.membership.member.heard import Heard, Interruption
from shoal.membership.member.outbox import Outbox
from shoal.plan.world.network import COORDINATOR, Network, StreamEnd
from shoal.plan.world.virtual_time import Process
from shoal.values import Address
from shoal.wire.messages import (
    PROTOCOL_VERSION,
    CheckpointSettled,
    CoordinatorMessage,
    Heartbeat,
    Join,
    Message,
    Turned,
    Welcome,
    encode,
)

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 1.0  # seconds between tries to reach a coordinator that is away


@dataclass
class Position:
    """What a heartbeat says."""

    step: int = 0
    operation: str = "start-up"
    blocked_since: float | None = None  # in a collective
    point: int = 0  # the last meeting outside loops that the script has come to


class WorkerClient:
    def __init__(self, process: Process, network: Network, worker: int, on_news: Callable[[], None]) -> None:
        """`on_news` is called after each message, once it is understood."""
        self.heard = Heard(worker)
        self.heard_at = 0.0  # when the newest message came
        self.welcome: Welcome | None = None  # the first one
        self.position = Position()
        self.on_interruption: Callable[[Interruption], None] = lambda _: None
        self._process = process
        self._network = network
        self._worker = worker
        self._on_news = on_news
        self._outbox = Outbox()
        self._end: StreamEnd | None = None
        self._is_welcome = False  # the coordinator at the other end has welcomed this worker
        self._pause = FIRST_PAUSE
        self._is_closed = False
        process.do(self._connect)

    def say(self, message: Message) -> None:
        self._outbox.add(message)
        self._push()

    @property
    def is_over(self) -> bool:
        return self.heard.ended is not None or self.heard.lost is not None

    def close(self) -> None:
        self._is_closed = True
        if self._end is not None:
            self._end.close()

    # The connection

    def _connect(self) -> None:
        if self._is_closed or self.is_over:
            return
        end = self._end = self._network.connect(self._worker, self._process, COORDINATOR, None)
        if end is None:
            self._come_back()
            return
        join = Join(
            version=PROTOCOL_VERSION,
            worker=self._worker,
            host=f"host-{self._worker}",
            process=1000 + self._worker,
            address=Address(f"host-{self._worker}", 1000),
            generation=self.heard.number if self.heard.is_member else 0,
            was_member=self.heard.was_member,
        )
        end.send(encode(join))
        end.listen(self._received, lambda: self._closed(end))

    def _come_back(self) -> None:
        self._process.after(self._pause, self._connect)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _closed(self, end: StreamEnd) -> None:
        if end is self._end:
            self._is_welcome = False
            self._come_back()

    def _push(self) -> None:
        while self._outbox and self._is_welcome and self._end is not None:
            data = bytes(self._outbox.next_bytes())
            self._end.send(data)
            self._outbox.taken(len(data))

    def beat(self) -> None:
        """Say where the script is, out of turn."""
        since, now = self.position.blocked_since, self._process.time.now
        self.say(
            Heartbeat(
                generation=self.heard.number,
                step=self.position.step,
                operation=self.position.operation,
                stalled=0.0 if since is None else now - since,
                point=self.position.point,
            )
        )

    def _beat(self, end: StreamEnd) -> None:
        if self._is_closed or end is not self._end or not self._is_welcome:
            return
        self.beat()
        assert self.welcome is not None
        self._process.after(self.welcome.heartbeat, lambda: self._beat(end))

    # What the coordinator says

    def _received(self, message: CoordinatorMessage) -> None:
        interruption: Interruption | None
        if isinstance(message, Welcome):
            interruption = self._welcomed(message)
        elif isinstance(message, Turned):
            self.heard.lost = f"turned away: {message.reason}"
            interruption = Interruption(self.heard.lost)
        else:
            interruption = self.heard.take_in(message)
        self._outbox.generation_heard(self.heard.number)
        if isinstance(message, CheckpointSettled):
            self._outbox.settled(message.checkpoint)
        if interruption is not None:
            self.on_interruption(interruption)
        # After everything else that had come: messages found after a long sleep are no news.
        end = self._end
        self._process.after(0.0, lambda: self._mark_heard(end))

    def _mark_heard(self, end: StreamEnd | None) -> None:
        if end is self._end and self._is_welcome and self._process.woke < self._process.time.now:
            self.heard_at = self._process.time.now
        self._on_news()

    def _welcomed(self, welcome: Welcome) -> Interruption | None:
        interruption = None
        if self.welcome is None:
            self.welcome = welcome
        else:
            interruption = self.heard.welcomed_back(welcome)
        self._pause = FIRST_PAUSE
        self._is_welcome = True
        self._outbox.generation_heard(self.heard.number)
        self._outbox.start_over(self._process.time.now)
        self._push()
        assert self._end is not None
        self._beat(self._end)
        return interruption
