"""The server's side of the relay between a job's workers: sends deliveries, and holds senders that are too fast.

While bytes pile up for a receiver that reads slowly, nothing is read from their sender. Not here: which worker gets
what (`relay`).
"""

from __future__ import annotations

from collections.abc import Iterable

from shoal.errors import ServerRefused
from shoal.parameters.relay.relay import Forwarded, RelayHub
from shoal.parameters.server.space.worker_line import WorkerLine
from shoal.wire.parameter_messages import Relay, RelayJoin

LARGEST_FRAME = 8 * 1024 * 1024  # bytes; workers cut longer ones
PILE_BYTES = 64 * 1024 * 1024  # with more bytes unsent to a receiver, its senders are held
JOB_PILE_BYTES = 512 * 1024 * 1024  # the same for all receivers of a job together


RELAYING = "relaying"  # why a connection is held


class RelayDesk:
    def __init__(self) -> None:
        self._hub = RelayHub()
        self._held: dict[WorkerLine, WorkerLine] = {}  # sender -> the receiver that it waits for
        self._receivers: set[WorkerLine] = set()  # lines that were sent something

    def room(self, size: int) -> memoryview:
        if size > LARGEST_FRAME:
            raise ServerRefused(
                f"{size} bytes in one frame between workers; at most {LARGEST_FRAME} are relayed", kind="bad-request"
            )
        return memoryview(bytearray(size))

    def join(self, line: WorkerLine, note: RelayJoin) -> None:
        self._deliver(line, self._hub.join(line, line.worker, note))

    def frame(self, line: WorkerLine, note: Relay, payload: memoryview | None) -> None:
        if payload is not None:
            self._deliver(line, self._hub.frame(line, note, payload))

    def left(self, line: WorkerLine, reason: str) -> None:
        self._held.pop(line, None)
        self._receivers.discard(line)
        self._deliver(line, self._hub.lost(line, reason))

    def relieve(self) -> None:
        """Release the senders whose receivers have caught up."""
        for sender, receiver in tuple(self._held.items()):
            if receiver.connection.is_closed or receiver.connection.unsent < PILE_BYTES // 8:
                del self._held[sender]
                sender.connection.go_on(RELAYING)

    def _deliver(self, sender: WorkerLine, deliveries: Iterable[Forwarded]) -> None:
        for delivery in deliveries:
            receiver = delivery.line
            assert isinstance(receiver, WorkerLine), "lines are the workers'"
            receiver.connection.send(delivery.note, delivery.payload)
            self._receivers.add(receiver)
            if receiver is not sender and self._is_piling_up(receiver):
                self._held[sender] = receiver
                sender.connection.hold(RELAYING)

    def _is_piling_up(self, receiver: WorkerLine) -> bool:
        unsent = receiver.connection.unsent
        if unsent > PILE_BYTES:
            return True
        return unsent > PILE_BYTES // 8 and sum(each.connection.unsent for each in self._receivers) > JOB_PILE_BYTES
