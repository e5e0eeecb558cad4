"""What a mailbox does with calls and letters: it matches, copies, offers, asks, and decides who fails when one leaves.

Called with the mailbox's guard held; never waits. Long copies out of a neighbour's memory are left to the caller, to be
made without the guard (`pulls`). Not here: threads and waiting (`mailbox`), how letters travel (`mailbox_lane`).
"""

from __future__ import annotations

import ctypes
from collections import Counter, deque
from collections.abc import Mapping

from shoal.collectives.mailbox_delivery import Delivery
from shoal.collectives.mailbox_lane import Lane
from shoal.collectives.mailbox_letters import Kind, Letter, describe
from shoal.collectives.mailbox_matching import Matching
from shoal.errors import ExchangeFailed, PeerLost, WireError, WorkersDisagree
from shoal.transport.ending import Ending, name_the_lost

# Short messages on their way to one rank that it has not received yet, in bytes: more are offered instead, so that who
# receives late keeps no more than this for every sender.
WINDOW_BYTES = 1024 * 1024
_COST = 64  # bytes that a message costs besides its own

_Message = tuple[Letter, bytes]  # an arrived one; the bytes are empty for an offer


class Pull:
    """A copy to be made, bytes of an offer out of its sender's memory: piece by piece, by one thread or several."""

    def __init__(self, delivery: Delivery, source: int, letter: Letter) -> None:
        self.delivery = delivery
        self.source = source
        self.letter = letter
        self.workers = 0  # threads that copy
        self.error: ExchangeFailed | None = None
        self._begun = 0  # bytes that somebody has copied or copies

    def next_piece(self, most: int, last: int) -> tuple[int, int] | None:
        """Start and size of what nobody has taken yet, unless it is the `last` so many bytes. None: that is all."""
        left = self.delivery.size - self._begun
        if left <= last or self.error is not None:
            return None
        size = min(most, left)
        self._begun += size
        return self._begun - size, size


class Post:
    def __init__(self, rank: int, size: int, lanes: Mapping[int, Lane], names: Mapping[int, str]) -> None:
        """`lanes` by rank, for all ranks but this one. `names` by rank are for errors."""
        self.rank, self.size = rank, size
        self.failure: BaseException | None = None  # the first one stays
        self.open: set[Delivery] = set()  # started and not done
        self.pulls: deque[Pull] = deque()
        self.finished: list[Delivery] = []  # of those that were open: somebody may have to be told
        self._lanes = lanes
        self._names = names
        self._matching: Matching[Delivery, _Message] = Matching()
        self._sent: Counter[int] = Counter()  # messages by target
        self._received = 0  # receives so far
        self._offers: dict[tuple[int, int], Delivery] = {}  # sends by target and number, until they are done
        self._expected: dict[tuple[int, int], Delivery] = {}  # receives by source and number, once asked for
        self._unreceived: Counter[int] = Counter()  # cost of short messages by target, as far as we were told
        self._taken: Counter[int] = Counter()  # cost of those we received and have not told of, by source
        self._endings: dict[int, Ending] = {}
        self._whys: dict[int, str] = {}  # by rank, for people

    def lane_of(self, rank: int) -> Lane:
        return self._lanes[rank]

    def send(self, delivery: Delivery) -> None:
        target = delivery.peer
        assert target is not None
        number = delivery.number = self._sent[target]
        self._sent[target] += 1
        if self.failure is not None or target in self._endings:
            delivery.finish(self._named(self.failure or self._left(target), delivery))
            return
        lane, size = self._lanes[target], delivery.size
        if size <= lane.most_inline and self._unreceived[target] + size < WINDOW_BYTES:
            self._unreceived[target] += size + _COST
            letter = Letter(Kind.MESSAGE, delivery.dtype, size, delivery.tag, number, size)
            if lane.post(target, letter, delivery):
                delivery.finish()
                return
        else:
            self._offers[target, number] = delivery
            letter = Letter(Kind.OFFER, delivery.dtype, 0, delivery.tag, number, size, delivery.address)
            lane.post(target, letter)
        self.open.add(delivery)

    def receive(self, delivery: Delivery) -> None:
        delivery.number = self._received
        self._received += 1
        if self.failure is not None:
            delivery.finish(self._named(self.failure, delivery))
            return
        self.open.add(delivery)
        found = self._matching.post(delivery, delivery.peer, delivery.tag)
        if found is not None:
            source, (letter, data) = found
            self._take(delivery, source, letter, data)

    def check(self, delivery: Delivery) -> None:
        """A receive that found nothing fails if whom it waits for has left."""
        if delivery.is_done or delivery.is_moving:
            return
        if delivery.peer in self._endings:
            self._abandon(delivery.peer)
        elif delivery.peer is None and len(self._endings) == self.size - 1:
            self._abandon(next(iter(self._endings)))

    # What lanes call: see `mailbox_lane.Recipient`

    def letter(self, source: int, letter: Letter, payload: int) -> None:
        kind = letter.kind
        if kind in (Kind.MESSAGE, Kind.OFFER):
            # The receive, if there is one, is found without a copy of the payload; a message that waits is kept as one.
            delivery = self._matching.match(source, letter.tag)
            if delivery is None:
                self._matching.keep((letter, ctypes.string_at(payload, letter.length)), source, letter.tag)
            else:
                self._take(delivery, source, letter, payload)
        elif kind == Kind.TAKEN:
            self._unreceived[source] -= letter.size
        else:
            delivery = self._offers.pop((source, letter.number), None)
            if delivery is None:
                raise WireError(f"rank {source} answers message {letter.number}, which this rank has not offered")
            self._answered(source, letter, delivery)

    def place(self, source: int, letter: Letter) -> Delivery:
        delivery = self._expected.get((source, letter.number))
        if delivery is None or letter.length > delivery.size - delivery.position:
            raise WireError(f"rank {source} sends {letter.length} bytes of message {letter.number}: nobody asked")
        return delivery

    def placed(self, source: int, letter: Letter, delivery: Delivery) -> None:
        if delivery.position == delivery.size:
            del self._expected[source, letter.number]
            delivery.source = source
            self.finish(delivery)

    def posted(self, delivery: Delivery) -> None:
        self.finish(delivery)

    def ended(self, rank: int, ending: Ending, why: str) -> None:
        self._endings.setdefault(rank, ending)
        self._whys.setdefault(rank, why)
        lost = name_the_lost(self._endings, own=self.rank, awaited=None)
        if lost is None:
            self._abandon(rank)  # it had finished: only those who need it fail
        else:
            self.fail(self._in_words(lost), blamed=lost.peer)

    # Ends

    def pulled(self, pull: Pull) -> None:
        """A copy was made, or could not be."""
        delivery = pull.delivery
        delivery.is_moving = False
        if delivery.is_done:
            return  # it has failed with all others
        if self.failure is not None or pull.error is not None:
            self.finish(delivery, self._named(self.failure or pull.error, delivery))
            return
        delivery.source = pull.source
        self.finish(delivery)
        self._lanes[pull.source].post(pull.source, Letter(Kind.DONE, number=pull.letter.number))

    def finish(self, delivery: Delivery, error: BaseException | None = None) -> None:
        delivery.finish(error)
        self.open.discard(delivery)
        self.finished.append(delivery)

    def fail(self, error: BaseException, *, blamed: int | None = None) -> None:
        """The first failure stays: everything fails with it, now and later, and the peers are told."""
        if self.failure is not None:
            return
        self.failure = error
        for lane in set(self._lanes.values()):  # first: they must not read what is free to change from now on
            lane.leave(Ending(announced=True, blamed=blamed))
        self._end_all()

    def close(self, error: BaseException) -> None:
        """The same, but the peers are told that this rank had finished."""
        if self.failure is None:
            self.failure = error
            for lane in set(self._lanes.values()):
                lane.leave(Ending(announced=True, clean=True))
            self._end_all()

    def _end_all(self) -> None:
        for delivery in tuple(self.open):
            if not delivery.is_moving:  # who copies notices, and finishes it
                self.finish(delivery, self._named(self.failure, delivery))
        for queue in (self._offers, self._expected):
            queue.clear()
        self._matching = Matching()

    def _abandon(self, rank: int) -> None:
        """It has left: whatever needs it fails."""
        needing = self._matching.abandon(rank)
        if len(self._endings) == self.size - 1:
            needing += self._matching.abandon(None)
        needing += [delivery for delivery in self.open if delivery.is_send and delivery.peer == rank]
        needing += [delivery for (source, _), delivery in self._expected.items() if source == rank]
        for delivery in needing:
            self.finish(delivery, self._named(self._left(rank), delivery))
        self._offers = {key: delivery for key, delivery in self._offers.items() if key[0] != rank}
        self._expected = {key: delivery for key, delivery in self._expected.items() if key[0] != rank}

    # Steps

    def _take(self, delivery: Delivery, source: int, letter: Letter, payload: int | bytes) -> None:
        """A receive has found its message."""
        if letter.kind == Kind.MESSAGE:
            self._count(source, letter.size + _COST)
        if (letter.dtype, letter.size) != (delivery.dtype, delivery.size):
            self._refuse(delivery, source, letter)
        elif letter.kind == Kind.MESSAGE:
            delivery.fill(payload, letter.length)
            delivery.source = source
            self.finish(delivery)
        elif source in self._endings:
            self.finish(delivery, self._named(self._left(source), delivery))
        elif self._lanes[source].reads_memory or not letter.size:
            delivery.is_moving = True
            self.pulls.append(Pull(delivery, source, letter))
        else:
            self._expected[source, letter.number] = delivery
            self._lanes[source].post(source, Letter(Kind.GO, number=letter.number))

    def _count(self, source: int, cost: int) -> None:
        """Tell the sender now and then how much of what it sent was received."""
        self._taken[source] += cost
        if self._taken[source] >= WINDOW_BYTES // 4:
            self._lanes[source].post(source, Letter(Kind.TAKEN, size=self._taken[source]))
            self._taken[source] = 0

    def _refuse(self, delivery: Delivery, source: int, letter: Letter) -> None:
        self.finish(delivery, self._mismatch((source, letter), (self.rank, delivery.dtype, delivery.size)))
        if letter.kind == Kind.OFFER:
            answer = Letter(Kind.REFUSED, delivery.dtype, number=letter.number, size=delivery.size, tag=letter.tag)
            self._lanes[source].post(source, answer)

    def _answered(self, target: int, letter: Letter, delivery: Delivery) -> None:
        """What the receiver of an offer says to it."""
        if letter.kind == Kind.DONE:
            self.finish(delivery)
        elif letter.kind == Kind.REFUSED:
            offer = Letter(Kind.OFFER, delivery.dtype, tag=delivery.tag, size=delivery.size)
            self.finish(delivery, self._mismatch((self.rank, offer), (target, letter.dtype, letter.size)))
        elif self._lanes[target].post(target, Letter(Kind.DATA, number=letter.number), delivery):
            self.finish(delivery)

    def _mismatch(self, sent: tuple[int, Letter], received: tuple[int, int, int]) -> WorkersDisagree:
        source, letter = sent
        target, dtype, size = received
        return WorkersDisagree(
            f"rank {source} sends {describe(letter.dtype, letter.size)} with tag {letter.tag}, and rank {target} "
            f"receives {describe(dtype, size)}: give both tensors the same size and dtype, or the messages other tags"
        )

    # Words

    def _left(self, rank: int) -> PeerLost:
        return PeerLost(f"rank {rank} left: it had finished, while this rank still needs it", peer=rank)

    def _in_words(self, lost: PeerLost) -> PeerLost:
        """As a lane knows it better."""
        rank = lost.peer
        if rank is None or not self._whys.get(rank) or self._endings[rank].announced:
            return lost
        return PeerLost(f"rank {rank} is gone: {self._whys[rank]}", peer=rank)

    def _named(self, error: BaseException | None, delivery: Delivery) -> BaseException | None:
        """The same loss with who it was and in which operation it was noticed."""
        if not isinstance(error, PeerLost):
            return error
        name = None if error.peer is None else self._names.get(error.peer)
        who = f"rank {error.peer} is {name}; " if name else ""
        return PeerLost(f"{error}; {who}noticed in {delivery.label}", peer=error.peer)
