"""A passage: whatever order its two ends and the receiver's own reads come in, the message is whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from shoal.collectives.mailbox.delivery import Delivery, OfferCopy
from shoal.collectives.mailbox.letters import Letter, LetterKind
from shoal.collectives.mailbox.pieces import PASSAGE_BYTES, PIECE_BYTES, SHORTEST, Places, SharedSlots
from shoal.errors import PeerLost
from shoal.transport.memory.arena import Arena
from shoal.transport.native import native

STATE, LINE, SLOTS = 64, 128, 4096  # in the arenas of this test; a line is 16 words


def with_the_extension(test: Callable[..., None]) -> Callable[..., None]:
    """Without it, the same test is that there is no passage."""
    return test if native is not None else no_passage


def no_passage() -> None:
    assert SharedSlots.open(Places(0, 0, 0, 0, 0, 0), lambda: None) is None


class Pair:
    """Two ranks: one sends, one receives."""

    def __init__(self) -> None:
        self.arenas = [Arena.create(SLOTS + PASSAGE_BYTES) for _ in range(2)]
        self.rings = 0
        self.sender, self.receiver = self._passage(0), self._passage(1)

    def _passage(self, rank: int) -> SharedSlots:
        own, its = self.arenas[rank].address, self.arenas[1 - rank].address
        passage = SharedSlots.open(
            Places(own + LINE, its + LINE, own + STATE, its + STATE, own + SLOTS, its + SLOTS), self._ring
        )
        assert passage is not None
        return passage

    def _ring(self) -> None:
        self.rings += 1

    def message(self, number: int, size: int) -> tuple[Delivery, OfferCopy]:
        sent = ((torch.arange(size) + number) % 251).to(torch.uint8)
        send = Delivery(None, sent, 1, 0, is_send=True)  # type: ignore[arg-type]  # nobody waits for it
        receive = Delivery(None, torch.zeros_like(sent), 0, 0, is_send=False)  # type: ignore[arg-type]  # nor for this
        send.number = number
        return send, OfferCopy(receive, 0, Letter(LetterKind.OFFER, number=number, size=size, address=send.address))

    def close(self) -> None:
        for arena in self.arenas:
            arena.close()


def read_last(pull: OfferCopy, sent: Delivery, passage: SharedSlots) -> None:
    """What a receiver does that finds nothing in the passage."""
    piece = pull.next_piece(4 * PIECE_BYTES, 0)
    passage.claim(pull)
    if piece is not None:
        start, size = piece
        pull.delivery.rest[start : start + size] = sent.rest[start : start + size]


@with_the_extension
@settings(deadline=None, max_examples=12)
@given(
    sizes=some.lists(some.integers(SHORTEST, SHORTEST + 3 * PIECE_BYTES), min_size=1, max_size=3),
    steps=some.lists(some.sampled_from(["give", "take", "read"]), max_size=20),
)
def test_messages_are_whole_whoever_moves_them(sizes: list[int], steps: list[str]) -> None:
    pair = Pair()
    for number, size in enumerate(sizes):
        sent, pull = pair.message(number, size)
        assert pair.sender.offers(sent)
        pair.sender.attend(False)  # the other end does not wait: all this is one thread
        pair.sender.give(sent)  # before anybody takes it
        assert pair.receiver.accepts(pull)
        for step in [*steps, *["give", "take"] * (size // PASSAGE_BYTES + 1), "read"]:
            if step == "give":
                pair.sender.give(sent)
            elif step == "take":
                pull.front = pair.receiver.take(pull)
            else:
                read_last(pull, sent, pair.receiver)
        assert pull.front >= pull.end
        assert pull.delivery.rest == sent.rest
        pair.receiver.release(pull)
        sent.finish()
    assert pair.rings
    pair.close()


@with_the_extension
def test_a_passage_is_one_messages_until_that_is_done() -> None:
    pair = Pair()
    (first, pull), (second, later) = pair.message(0, SHORTEST), pair.message(1, SHORTEST)
    assert pair.sender.offers(first)
    assert pair.sender.give(first)
    assert not pair.sender.give(first), "all slots are full and nobody takes them"
    assert not pair.sender.offers(second)
    assert pair.receiver.accepts(pull)
    assert not pair.receiver.accepts(later)
    assert pair.receiver.take(pull) == PASSAGE_BYTES
    first.finish()
    assert pair.sender.offers(second)
    pair.receiver.release(pull)
    assert pair.receiver.accepts(later)
    assert pair.receiver.take(later) == 0, "what lies there is of another message"
    pair.close()


@with_the_extension
def test_what_a_sender_gave_before_it_left_does_not_count() -> None:
    pair = Pair()
    sent, pull = pair.message(0, SHORTEST)
    assert pair.sender.offers(sent)
    pair.sender.give(sent)
    assert pair.receiver.accepts(pull)
    pair.arenas[0].memory[STATE] = 1
    with pytest.raises(PeerLost, match="rank 0 left before its message was read") as lost:
        pair.receiver.take(pull)
    assert lost.value.peer == 0
    assert not pair.sender.give(sent), "who leaves gives nothing"
    pair.close()
