"""The lane to ranks of other machines: letters over one TCP connection per peer.

A short message travels with its letter. The first bytes of a long one do, too; its receiver asks for the rest while
they arrive, so a message that nobody receives yet never blocks those behind it. Bytes of more than a few packets are
received straight into their place. The lane owns its connections; `transport.tcp` makes them. A closed connection is
noticed at once; `look` notices one whose packets vanish.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Mapping, Sequence

from shoal.collectives.mailbox.delivery import Delivery
from shoal.collectives.mailbox.lane import Lane, Recipient
from shoal.collectives.mailbox.letters import LETTER_BYTES, Letter, LetterKind, pack, unpack_from
from shoal.errors import WireError
from shoal.transport.connection import near_link, silence
from shoal.transport.connection.endpoint import Endpoint
from shoal.transport.connection.sending import SendQueue
from shoal.transport.memory.arena import address_of
from shoal.transport.mesh.stream_ending import CUT_OFF, SILENT, StreamEnding, pack_ending, unpack_ending
from shoal.transport.tcp.tcp_stream import UNREACHABLE

SHORT_BYTES = 32 * 1024  # up to this size, bytes that travel with a letter go through a buffer
BUFFER_BYTES = 4 * (LETTER_BYTES + SHORT_BYTES)  # at least one short letter that begins anywhere in it fits
# The most bytes that travel with a letter. While they travel, the answer to an offer comes.
MOST_AHEAD = 1024 * 1024
ENOUGH_BYTES = 256 * 1024  # of a long message: fewer are not worth waking up for; more would not stay in the cache
SEND_BYTES = 8 * 1024 * 1024  # the most that one call hands to the kernel
TURN_BYTES = 8 * 1024 * 1024  # the most that is received from one peer before others have their turn


class _Stream:
    """The connection to one peer."""

    def __init__(self, peer: int, endpoint: Endpoint) -> None:
        self.peer = peer
        self.endpoint = endpoint
        self.mask = select.EPOLLIN
        self.outgoing: SendQueue[Delivery] = SendQueue()  # a send is the mark of its last bytes
        self.is_deaf = False  # the peer takes nothing more; unread bytes from it may still say why
        self.has_ended = False
        self.buffer = bytearray(BUFFER_BYTES)
        self.address = address_of(self.buffer)
        self.view = memoryview(self.buffer)
        self.start = self.end = 0  # of the bytes in the buffer that were received and not taken yet
        self.enough = 1  # bytes that have to be there before the kernel wakes this end
        self.incoming: tuple[Letter, memoryview] | None = None  # a letter, and the place of its bytes still to come

    def push(self) -> list[Delivery]:
        """Hand queued bytes to the kernel. Returns the sends that have left completely."""
        try:
            self.outgoing.push(self.endpoint, SEND_BYTES)
        except OSError:
            self.is_deaf = True
            self.outgoing.clear()
        return self.outgoing.take_gone()

    def receive(self) -> tuple[int, bool]:
        """Receive bytes into the buffer or straight into their place. Returns how many, and whether more may be there.

        0 bytes: the stream has ended. `OSError`: from the kernel.
        """
        if self.incoming is not None:
            letter, place = self.incoming
            count = self.endpoint.recv_into(place)
            self._expect(letter, place[count:])
            return count, count == len(place)
        if self.end + LETTER_BYTES + SHORT_BYTES > BUFFER_BYTES:
            rest = bytes(self.view[self.start : self.end])
            self.view[: len(rest)] = rest
            self.start, self.end = 0, len(rest)
        count = self.endpoint.recv_into(self.view[self.end :])
        self.end += count
        return count, self.end == BUFFER_BYTES

    def next_letter(self) -> Letter | None:
        """The next letter, once all its bytes that go through the buffer are here. It stays in the buffer."""
        if self.end - self.start < LETTER_BYTES:
            return None
        try:
            letter = unpack_from(self.buffer, self.start, most=MOST_AHEAD)
        except WireError as error:
            raise WireError(f"from rank {self.peer}: {error}") from None
        is_there = _is_long(letter) or self.end - self.start >= LETTER_BYTES + letter.length
        return letter if is_there else None

    def begin(self, letter: Letter, place: memoryview) -> None:
        """Begin a long letter: move its bytes from the buffer to their place, where the others will follow."""
        self.start += LETTER_BYTES
        count = min(letter.length, self.end - self.start)
        place[:count] = self.view[self.start : self.start + count]
        self.start += count
        self._expect(letter, place[count:])

    def _expect(self, letter: Letter, place: memoryview) -> None:
        """Expect the rest of a long letter. The kernel wakes this end when enough bytes are there to be worth it."""
        self.incoming = (letter, place)
        enough = max(1, min(len(place), ENOUGH_BYTES))
        if enough != self.enough:
            self.enough = enough
            self.endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, enough)

    @property
    def last_words(self) -> StreamEnding:
        """How the peer ended its stream."""
        return CUT_OFF if self.incoming is not None else unpack_ending(bytes(self.view[self.start : self.end]))


def _is_long(letter: Letter) -> bool:
    return letter.kind == LetterKind.DATA or letter.length > SHORT_BYTES


class TcpLane(Lane):
    most_inline = MOST_AHEAD
    most_ahead = MOST_AHEAD
    is_local = False
    reads_memory = False

    def __init__(self, connections: Mapping[int, Endpoint], silence_limit: float) -> None:
        """`connections`: one per peer; they belong to the lane from now on.

        `silence_limit`: seconds after which a connection whose packets vanish counts as cut.
        """
        self._silence_limit = silence_limit
        self._streams = {peer: _Stream(peer, connection) for peer, connection in connections.items()}
        self._by_descriptor = {stream.endpoint.fileno(): stream for stream in self._streams.values()}
        self.peers = self._streams.keys()
        self._epoll: select.epoll
        # Streams whose first letters came with the handshake: the kernel does not report these letters any more.
        self._eager: list[_Stream] = []
        self._untold: list[tuple[int, StreamEnding]] = []  # peers whose streams ended, before the recipient hears of it
        for stream in self._streams.values():
            stream.endpoint.setblocking(False)
            near_link.keep_in_cache(stream.endpoint)
            silence.watch(stream.endpoint, silence_limit)

    def post(self, target: int, letter: Letter, delivery: Delivery | None = None) -> bool:
        stream = self._streams[target]
        if stream.has_ended or stream.is_deaf:
            return False
        was_empty = not stream.outgoing
        token = None if letter.kind == LetterKind.OFFER else delivery  # an offer that has left is not done
        if delivery is None or not letter.length:
            stream.outgoing.add(pack(letter), token)
        else:
            stream.outgoing.add(pack(letter))
            stream.outgoing.add(delivery.rest[: letter.length], token)
        if not was_empty:
            return False
        stream.push()
        self._watch(stream)
        return not stream.outgoing and not stream.is_deaf

    def watch(self, epoll: select.epoll) -> None:
        self._epoll = epoll
        for stream in self._streams.values():
            epoll.register(stream.endpoint, stream.mask)
        self._eager = [stream for stream in self._streams.values() if stream.endpoint.has_more()]

    def collect(self, recipient: Recipient, ready: Sequence[tuple[int, int]]) -> None:
        while self._eager:
            self._receive(self._eager.pop(), recipient)
        for descriptor, happened in ready:
            stream = self._by_descriptor.get(descriptor)
            if stream is None or stream.has_ended:  # a failure ends all streams at once
                continue
            if happened & select.EPOLLOUT:
                for delivery in stream.push():
                    recipient.posted(delivery)
                self._watch(stream)
            if happened & ~select.EPOLLOUT:
                self._receive(stream, recipient)
        self._tell(recipient)

    @property
    def is_streaming(self) -> bool:
        return any(stream.incoming is not None or stream.outgoing for stream in self._streams.values())

    def has_mail(self) -> bool:
        return False

    def sleep(self, is_asleep: bool) -> None:  # noqa: ARG002  the kernel wakes the sleeping thread
        return

    def pull(self, source: int, there: int, here: int, size: int) -> None:
        raise NotImplementedError("the memory of another machine cannot be read")

    def look(self, recipient: Recipient, now: float) -> None:  # noqa: ARG002  the kernel has clocks of its own
        for stream in self._streams.values():
            if not stream.has_ended and silence.unanswered(stream.endpoint) >= self._silence_limit:
                self._end(stream, SILENT)
        self._tell(recipient)

    def leave(self, ending: StreamEnding) -> None:
        for stream in self._streams.values():
            try:
                if not stream.outgoing:  # between letters
                    stream.endpoint.send(pack_ending(ending))
                stream.endpoint.shutdown(socket.SHUT_WR)
            except OSError:
                continue  # nobody listens, or there is no room: the closed connection tells the peer enough
            finally:
                stream.has_ended = True
                stream.outgoing.clear()

    def close(self) -> None:
        for stream in self._streams.values():
            stream.endpoint.close()

    def _watch(self, stream: _Stream) -> None:
        mask = select.EPOLLIN | (select.EPOLLOUT if stream.outgoing else 0)
        if mask != stream.mask and not stream.has_ended:
            stream.mask = mask
            self._epoll.modify(stream.endpoint, mask)

    def _receive(self, stream: _Stream, recipient: Recipient) -> None:
        left, has_more = TURN_BYTES, True
        while has_more and (left > 0 or stream.endpoint.has_more()) and not stream.has_ended:
            try:
                count, has_more = stream.receive()
            except BlockingIOError:
                return
            except OSError as error:
                self._end(stream, SILENT if error.errno in UNREACHABLE else stream.last_words)
                return
            if count == 0:
                self._end(stream, stream.last_words)
                return
            left -= count
            self._take_letters(stream, recipient)

    def _take_letters(self, stream: _Stream, recipient: Recipient) -> None:
        while not stream.has_ended:
            if stream.incoming is not None:
                letter, missing = stream.incoming
                if missing:
                    return
                stream.incoming = None
                recipient.end(stream.peer, letter)
                continue
            following = stream.next_letter()
            if following is None:
                return
            if _is_long(following):
                stream.begin(following, recipient.begin(stream.peer, following))
            else:
                recipient.letter(stream.peer, following, stream.address + stream.start + LETTER_BYTES)
                stream.start += LETTER_BYTES + following.length

    def _end(self, stream: _Stream, ending: StreamEnding) -> None:
        stream.has_ended = True
        stream.outgoing.clear()
        self._epoll.unregister(stream.endpoint)
        self._untold.append((stream.peer, ending))

    def _tell(self, recipient: Recipient) -> None:
        """Tell of streams that ended, those cut off inside a letter last: their peers may have left because of another.

        Where such a peer and this rank lost the same rank, that rank's last words lie here already.
        """
        if any(ending.partial for _, ending in self._untold):
            for stream in (*self._streams.values(),) * 2:  # a stream's last words, then its end
                if not stream.has_ended:
                    self._receive(stream, recipient)
        untold, self._untold = self._untold, []
        for peer, ending in sorted(untold, key=lambda each: each[1].partial):
            recipient.ended(peer, ending, "")
