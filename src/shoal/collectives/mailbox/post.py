"""What a mailbox does with calls and letters: matches, copies, offers, asks, and fails operations when a peer leaves.

Called with the mailbox's guard held; never waits. The caller makes long copies out of a neighbour's memory without the
guard (`pulls`). Not here: threads and waiting (`mailbox_progress`), how letters travel (`lane`).
"""

from __future__ import annotations

import ctypes
from collections import Counter, deque
from collections.abc import Mapping

from shoal.collectives.mailbox.delivery import Delivery, EarlyMessage, OfferCopy
from shoal.collectives.mailbox.lane import Lane
from shoal.collectives.mailbox.letters import Letter, LetterKind, describe
from shoal.collectives.mailbox.matching import Matching
from shoal.errors import PeerLost, WireError, WorkersDisagree
from shoal.transport.mesh.stream_ending import StreamEnding, credible, name_the_lost

# The most bytes that may have travelled with letters to one rank without being received. Messages beyond that are only
# offered, so that a rank that receives late keeps no more than this for each sender.
WINDOW_BYTES = 4 * 1024 * 1024
_COST = 64  # bytes that a message costs besides its own


def _cost(letter: Letter) -> int:
    """The cost, in bytes, of keeping the letter until it is received."""
    return letter.length + _COST if letter.length or letter.kind == LetterKind.MESSAGE else 0


class Post:
    def __init__(self, rank: int, size: int, lanes: Mapping[int, Lane], names: Mapping[int, str]) -> None:
        """`lanes`: by rank, for all ranks but this one. `names`: by rank, for errors."""
        self.rank, self.size = rank, size
        self.failure: BaseException | None = None  # the first one stays
        self.open: set[Delivery] = set()  # started and not done
        self.pulls: deque[OfferCopy] = deque()
        self.finished: list[Delivery] = []  # were open; their callbacks and waiting threads are still to be told
        self._lanes = lanes
        self._losses = DepartedPeers(rank, names)
        self._matching: Matching[Delivery, EarlyMessage] = Matching()
        self._sent: Counter[int] = Counter()  # messages by target
        self._received = 0  # receives so far
        self._offers: dict[tuple[int, int], Delivery] = {}  # sends by target and number, until they are done
        self._expected: dict[tuple[int, int], Delivery] = {}  # receives by source and number, once asked for
        self._arriving: dict[int, Delivery | EarlyMessage] = {}  # by source: where the bytes go that are arriving now
        self._unreceived: Counter[int] = Counter()  # by target: cost of letters that it has not reported as received
        self._late: dict[Delivery, BaseException | None] = {}  # sends to finish once no thread copies them; their error
        self._taken: Counter[int] = Counter()  # by source: cost of letters received and not yet reported to it

    def lane_of(self, rank: int) -> Lane:
        return self._lanes[rank]

    def send(self, delivery: Delivery) -> None:
        target = delivery.peer
        assert target is not None
        number = delivery.number = self._sent[target]
        self._sent[target] += 1
        if self.failure is not None or target in self._losses.endings:
            delivery.finish(self._losses.in_operation(self.failure or needed(target), delivery.label))
            return
        lane, size, room = self._lanes[target], delivery.size, WINDOW_BYTES - self._unreceived[target]
        if size <= lane.most_inline and size < room:
            letter = Letter(LetterKind.MESSAGE, delivery.dtype, size, delivery.tag, number, size)
        else:
            ahead = max(0, min(lane.most_ahead, room, size - 1))
            letter = Letter(LetterKind.OFFER, delivery.dtype, ahead, delivery.tag, number, size, delivery.address)
            self._offers[target, number] = delivery
        self._unreceived[target] += _cost(letter)
        if lane.post(target, letter, delivery) and letter.kind == LetterKind.MESSAGE:
            delivery.finish()
            return
        delivery.position = 0 if letter.kind == LetterKind.MESSAGE else letter.length
        self.open.add(delivery)

    def receive(self, delivery: Delivery) -> None:
        delivery.number = self._received
        self._received += 1
        if self.failure is not None:
            delivery.finish(self._losses.in_operation(self.failure, delivery.label))
            return
        self.open.add(delivery)
        found = self._matching.post(delivery, delivery.peer, delivery.tag)
        if found is None:
            return
        source, message = found
        if message.is_whole:
            self._take(delivery, source, message.letter, bytes(message.data))
        else:
            message.delivery = delivery

    def check(self, delivery: Delivery) -> None:
        """Fail a receive that found no message if the peer that it waits for has left."""
        endings = self._losses.endings
        if delivery.is_done or delivery.is_moving:
            return
        if delivery.peer in endings:
            self._abandon(delivery.peer)
        elif delivery.peer is None and len(endings) == self.size - 1:
            self._abandon(next(iter(endings)))

    # Called by lanes: see `lane.Recipient`

    def letter(self, source: int, letter: Letter, payload: int) -> None:
        kind = letter.kind
        if kind in (LetterKind.MESSAGE, LetterKind.OFFER):
            delivery = self._matching.match(source, letter.tag)
            if delivery is not None:
                self._take(delivery, source, letter, payload)
                return
            message = EarlyMessage(letter, ctypes.string_at(payload, letter.length), is_whole=True)
            self._matching.keep(message, source, letter.tag)
        elif kind == LetterKind.TAKEN:
            if letter.size > self._unreceived[source]:
                raise WireError(f"rank {source} has received {letter.size} bytes more than this rank sent to it")
            self._unreceived[source] -= letter.size
        else:
            delivery = self._offers.pop((source, letter.number), None)
            if delivery is None:
                raise WireError(f"rank {source} answers message {letter.number}, which this rank has not offered")
            self._answered(source, letter, delivery)

    def begin(self, source: int, letter: Letter) -> memoryview:
        if letter.kind == LetterKind.DATA:
            delivery = self._expected.get((source, letter.number))
            if delivery is None or letter.length > delivery.size - delivery.position:
                raise WireError(f"rank {source} sends {letter.length} bytes of message {letter.number}: nobody asked")
        else:
            delivery = self._matching.match(source, letter.tag)
            if delivery is None or not self._accept(delivery, source, letter):
                message = self._arriving[source] = EarlyMessage(letter, bytearray(letter.length), is_whole=False)
                if delivery is None:
                    self._matching.keep(message, source, letter.tag)
                return memoryview(message.data)
            if letter.kind == LetterKind.OFFER:
                self._ask(delivery, source, letter)  # at once, so that the answer travels while these bytes arrive
        self._arriving[source] = delivery
        return delivery.rest[: letter.length]

    def end(self, source: int, letter: Letter) -> None:
        arriving = self._arriving.pop(source)
        if isinstance(arriving, EarlyMessage):
            arriving.is_whole = True
            if arriving.delivery is not None:
                self._take(arriving.delivery, source, letter, bytes(arriving.data))
            return
        arriving.position += letter.length
        if arriving.position == arriving.size:
            self._expected.pop((source, letter.number), None)
            self._finish_receive(arriving, source)

    def posted(self, delivery: Delivery) -> None:
        self.finish(delivery)

    def ended(self, rank: int, ending: StreamEnding, why: str) -> None:
        lost = self._losses.add(rank, credible(ending, self.size), why)
        if lost is None:
            self._abandon(rank)  # the peer had finished: only operations that need it fail
        else:
            self.fail(lost, blamed=lost.peer)

    # Ends

    def pulled(self, pull: OfferCopy) -> None:
        """A copy was made, or could not be."""
        delivery = pull.delivery
        delivery.is_moving = False
        error = self.failure or pull.error
        if delivery.is_done:
            return  # it failed together with all others
        if error is not None:
            self._fail_one(delivery, error)
            return
        self._finish_receive(delivery, pull.source)
        self._lanes[pull.source].post(pull.source, Letter(LetterKind.DONE, number=pull.letter.number))

    def given(self, delivery: Delivery) -> None:
        """No thread copies out of this send's memory any more."""
        delivery.is_moving = False
        if delivery in self._late:
            self.finish(delivery, self._late.pop(delivery))
        elif self.failure is not None:
            self._fail_one(delivery, self.failure)

    def finish(self, delivery: Delivery, error: BaseException | None = None) -> None:
        if delivery.is_send and delivery.is_moving:
            self._late[delivery] = error
            return
        delivery.finish(error)
        self.open.discard(delivery)
        self.finished.append(delivery)

    def fail(self, error: BaseException, *, blamed: int | None = None) -> None:
        """Fail all operations with this error, now and later, and tell the peers. Only the first failure counts."""
        self._end(error, StreamEnding(announced=True, blamed=blamed))

    def close(self, error: BaseException) -> None:
        """Like `fail`, but tell the peers that this rank had finished."""
        self._end(error, StreamEnding(announced=True, clean=True))

    def _end(self, error: BaseException, ending: StreamEnding) -> None:
        if self.failure is not None:
            return
        self.failure = error
        for lane in set(self._lanes.values()):  # first, so that peers stop reading memory that may change from now on
            lane.leave(ending)
        for delivery in tuple(self.open):
            if not delivery.is_moving:  # otherwise the copying thread notices, and finishes it
                self._fail_one(delivery, error)
        for kept in (self._offers, self._expected, self._arriving):
            kept.clear()
        self._matching = Matching()

    def _abandon(self, rank: int) -> None:
        """A peer has left: fail every operation that needs it."""
        needing = self._matching.abandon(rank)
        if len(self._losses.endings) == self.size - 1:
            needing += self._matching.abandon(None)
        needing += [delivery for delivery in self.open if delivery.is_send and delivery.peer == rank]
        needing += [delivery for (source, _), delivery in self._expected.items() if source == rank]
        for delivery in needing:
            self._fail_one(delivery, needed(rank))
        self._offers = {key: delivery for key, delivery in self._offers.items() if key[0] != rank}
        self._expected = {key: delivery for key, delivery in self._expected.items() if key[0] != rank}

    # Steps

    def _take(self, delivery: Delivery, source: int, letter: Letter, payload: int | bytes) -> None:
        """A receive has found its message, and all bytes that travel with the letter are here."""
        if not self._accept(delivery, source, letter):
            return
        if letter.kind == LetterKind.OFFER and source in self._losses.endings:
            self._fail_one(delivery, needed(source))
        elif letter.kind == LetterKind.OFFER and (self._lanes[source].reads_memory or not letter.size):
            delivery.is_moving = True
            self.pulls.append(OfferCopy(delivery, source, letter))
        else:
            delivery.fill(payload, letter.length)
            if letter.kind == LetterKind.OFFER:
                self._ask(delivery, source, letter)
            else:
                self._finish_receive(delivery, source)

    def _accept(self, delivery: Delivery, source: int, letter: Letter) -> bool:
        """Compare send and receive. False: they differ, and both have been told."""
        self._count(source, _cost(letter))
        if (letter.dtype, letter.size) == (delivery.dtype, delivery.size):
            return True
        self.finish(delivery, mismatch((source, letter), (self.rank, delivery.dtype, delivery.size)))
        if letter.kind == LetterKind.OFFER:
            answer = Letter(LetterKind.REFUSED, delivery.dtype, number=letter.number, size=delivery.size)
            self._lanes[source].post(source, answer)
        return False

    def _ask(self, delivery: Delivery, source: int, letter: Letter) -> None:
        """Ask for the rest of an offer."""
        self._expected[source, letter.number] = delivery
        self._lanes[source].post(source, Letter(LetterKind.GO, number=letter.number))

    def _count(self, source: int, cost: int) -> None:
        """Tell the sender now and then the cost of what was received from it."""
        self._taken[source] += cost
        if self._taken[source] >= WINDOW_BYTES // 4:
            self._lanes[source].post(source, Letter(LetterKind.TAKEN, size=self._taken[source]))
            self._taken[source] = 0

    def _answered(self, target: int, letter: Letter, delivery: Delivery) -> None:
        """The receiver of an offer has answered it."""
        if letter.kind == LetterKind.DONE:
            self.finish(delivery)
        elif letter.kind == LetterKind.REFUSED:
            offer = Letter(LetterKind.OFFER, delivery.dtype, tag=delivery.tag, size=delivery.size)
            self.finish(delivery, mismatch((self.rank, offer), (target, letter.dtype, letter.size)))
        else:
            data = Letter(LetterKind.DATA, length=delivery.size - delivery.position, number=letter.number)
            if self._lanes[target].post(target, data, delivery):
                self.finish(delivery)

    def _finish_receive(self, delivery: Delivery, source: int) -> None:
        delivery.source = source
        self.finish(delivery)

    def _fail_one(self, delivery: Delivery, error: BaseException) -> None:
        self.finish(delivery, self._losses.in_operation(error, delivery.label))


class DepartedPeers:
    """The peers that have left, and which of them an error names."""

    def __init__(self, rank: int, names: Mapping[int, str]) -> None:
        self.endings: dict[int, StreamEnding] = {}
        self._rank = rank
        self._names = names
        self._whys: dict[int, str] = {}  # by rank, for error texts

    def add(self, rank: int, ending: StreamEnding, why: str) -> PeerLost | None:
        """The loss that fails everything; None: all peers that left had finished. `why`: for error texts, or empty."""
        self.endings.setdefault(rank, ending)
        self._whys.setdefault(rank, why)
        lost = name_the_lost(self.endings, own=self._rank, awaited=None)
        if lost is None or lost.peer is None or not self._whys.get(lost.peer) or self.endings[lost.peer].announced:
            return lost
        return PeerLost(f"rank {lost.peer} is gone: {self._whys[lost.peer]}", peer=lost.peer)

    def in_operation(self, error: BaseException, label: str) -> BaseException:
        """The same error with the lost rank's name, if known, and the operation in which the loss was noticed."""
        if not isinstance(error, PeerLost):
            return error
        name = None if error.peer is None else self._names.get(error.peer)
        who = f"rank {error.peer} is {name}; " if name else ""
        return PeerLost(f"{error}; {who}noticed in {label}", peer=error.peer)


def needed(rank: int) -> PeerLost:
    return PeerLost(f"rank {rank} left: it had finished, while this rank still needs it", peer=rank)


def mismatch(sent: tuple[int, Letter], received: tuple[int, int, int]) -> WorkersDisagree:
    """`sent`: rank and letter; `received`: rank, dtype and size."""
    source, letter = sent
    target, dtype, size = received
    return WorkersDisagree(
        f"rank {source} sends {describe(letter.dtype, letter.size)} with tag {letter.tag}, and rank {target} "
        f"receives {describe(dtype, size)}: give both tensors the same size and dtype, or the messages other tags"
    )
