"""The relay between a job's workers as a server does it: deliveries go out on connections, and who is too fast is held.

Whose bytes pile up at a receiver that reads slowly is not read from until they are out. Not here: who gets what
(`relay`).
"""

from __future__ import annotations

from collections.abc import Iterable

from shoal.errors import ServerRefused
from shoal.parameters.relay import Delivery, RelayHub
from shoal.parameters.worker_link import WorkerLink
from shoal.wire.parameter_messages import Relay, RelayJoin

LARGEST_FRAME = 256 * 1024 * 1024  # bytes
PILE_BYTES = 64 * 1024 * 1024  # unsent bytes of a receiver from which on its senders are held


class RelayDesk:
    def __init__(self) -> None:
        self._hub = RelayHub()
        self._held: dict[WorkerLink, WorkerLink] = {}  # sender -> the receiver that it waits for

    def room(self, size: int) -> memoryview:
        if size > LARGEST_FRAME:
            raise ServerRefused(
                f"{size} bytes in one frame between workers; at most {LARGEST_FRAME} are relayed", kind="bad-request"
            )
        return memoryview(bytearray(size))

    def join(self, link: WorkerLink, note: RelayJoin) -> None:
        self._deliver(link, self._hub.join(link, link.worker, note))

    def frame(self, link: WorkerLink, note: Relay, payload: memoryview | None) -> None:
        if payload is not None:
            self._deliver(link, self._hub.frame(link, note, payload))

    def left(self, link: WorkerLink, reason: str) -> None:
        self._held.pop(link, None)
        self._deliver(link, self._hub.lost(link, reason))

    def relieve(self) -> None:
        """Let those go on whose receivers have caught up."""
        for sender, receiver in tuple(self._held.items()):
            if receiver.connection.is_closed or receiver.connection.unsent < PILE_BYTES // 2:
                del self._held[sender]
                sender.connection.is_held = False
                sender.connection.touched(sender.connection)

    def _deliver(self, sender: WorkerLink, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            receiver = delivery.link
            assert isinstance(receiver, WorkerLink), "links are the workers'"
            receiver.connection.send(delivery.note, delivery.payload)
            if receiver is not sender and receiver.connection.unsent > PILE_BYTES:
                self._held[sender] = receiver
                sender.connection.is_held = True
                sender.connection.touched(sender.connection)
