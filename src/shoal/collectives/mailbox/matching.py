"""Which receive gets which message. Pure: posted receives and arrived messages in, pairs out.

Messages of one source and tag are received in the order in which they were sent, by receives in the order in which they
were posted. A receive that takes any source gets the message that arrived first. Tags and sources do not hold each
other up. Not here: how messages arrive and where their bytes go.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

Receive = TypeVar("Receive")
Message = TypeVar("Message")


class Matching(Generic[Receive, Message]):
    def __init__(self) -> None:
        self._count = 0  # of posts and arrivals; gives their order
        # By source (None: any) and tag, each in order; an entry is dropped with its last item.
        self._posted: dict[tuple[int | None, int], deque[tuple[int, Receive]]] = {}
        self._arrived: dict[tuple[int, int], deque[tuple[int, Message]]] = {}

    def post(self, receive: Receive, source: int | None, tag: int) -> tuple[int, Message] | None:
        """Post a receive. Returns the source and the message that it gets; None: it waits."""
        found = self._first_source(tag) if source is None else source
        if found is not None and (found, tag) in self._arrived:
            return found, _take(self._arrived, (found, tag))
        self._count += 1
        self._posted.setdefault((source, tag), deque()).append((self._count, receive))
        return None

    def match(self, source: int, tag: int) -> Receive | None:
        """A message arrives. Returns the receive that gets it; None: there is none, so call `keep`."""
        exact, any_source = self._posted.get((source, tag)), self._posted.get((None, tag))
        if exact is not None and (any_source is None or exact[0][0] < any_source[0][0]):
            return _take(self._posted, (source, tag))
        if any_source is not None:
            return _take(self._posted, (None, tag))
        return None

    def keep(self, message: Message, source: int, tag: int) -> None:
        """Keep an arrived message for which no receive was posted."""
        self._count += 1
        self._arrived.setdefault((source, tag), deque()).append((self._count, message))

    def abandon(self, source: int | None) -> list[Receive]:
        """Nothing more comes from this source (None: from any): remove and return the receives that need it."""
        keys = [key for key in self._posted if key[0] == source]
        return [receive for key in keys for _, receive in self._posted.pop(key)]

    def _first_source(self, tag: int) -> int | None:
        heads = [(queue[0][0], key[0]) for key, queue in self._arrived.items() if key[1] == tag]
        return min(heads)[1] if heads else None


Key = TypeVar("Key")
Item = TypeVar("Item")


def _take(queues: dict[Key, deque[tuple[int, Item]]], key: Key) -> Item:
    queue = queues[key]
    _, item = queue.popleft()
    if not queue:
        del queues[key]
    return item
