"""Letters through a ring: all, whole and in order, whoever is faster; what does not fit waits."""

from __future__ import annotations

import ctypes
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from shoal.collectives.mailbox.letter_ring import LINE, MOST_BYTES, RING_BYTES, Counter, Reader, RingPlace, Writer
from shoal.collectives.mailbox.letters import LETTER_BYTES, Letter, LetterKind, describe, pack, unpack_from
from shoal.errors import WireError
from shoal.transport.memory.arena import address_of

LENGTHS = some.one_of(some.integers(0, 200), some.integers(0, MOST_BYTES), some.just(MOST_BYTES))


def ring() -> tuple[Writer, Reader]:
    memory, words = bytearray(RING_BYTES + LINE), memoryview(bytearray(16)).cast("Q")
    place = RingPlace(memoryview(memory), LINE, address_of(memory) + LINE)
    return Writer(place, Counter(words, 0), Counter(words, 1)), Reader(place, Counter(words, 0), Counter(words, 1))


def content(number: int, length: int) -> bytes:
    return bytes([number % 251]) * length


def read_one(reader: Reader) -> tuple[int, bytes]:
    letter = reader.peek(reader.written)
    assert letter is not None
    assert letter.kind == LetterKind.MESSAGE
    data = ctypes.string_at(reader.payload, letter.length)
    reader.advance(letter)
    return letter.number, data


@settings(deadline=None)
@given(some.lists(some.one_of(LENGTHS, some.none()), max_size=60))
def test_what_is_read_is_what_was_written(steps: list[int | None]) -> None:
    """A length writes, None reads."""
    writer, reader = ring()
    expected: deque[tuple[int, bytes]] = deque()
    for number, length in enumerate(steps):
        if length is None:
            assert reader.has_letter == bool(expected)
            if expected:
                assert read_one(reader) == expected.popleft()
            continue
        data = bytearray(content(number, length)) or bytearray(1)
        letter = Letter(LetterKind.MESSAGE, 9, length, -5, number, length)
        while not writer.write(letter, address_of(data)):
            assert read_one(reader) == expected.popleft()  # an empty ring always has room
        expected.append((number, content(number, length)))
    while expected:
        assert read_one(reader) == expected.popleft()
    assert not reader.has_letter


def test_a_ring_that_is_full_takes_nothing_and_loses_nothing() -> None:
    writer, reader = ring()
    letter = Letter(LetterKind.MESSAGE)
    count = 0
    while writer.write(letter._replace(number=count), 0):
        count += 1
    assert count == RING_BYTES // LINE
    assert [read_one(reader)[0] for _ in range(count)] == list(range(count))
    assert writer.write(letter, 0)


@given(some.integers(1, 7), some.integers(0, 255), some.integers(-(2**63), 2**63 - 1), some.integers(0, 2**64 - 1))
def test_a_letter_arrives_as_it_was_packed(kind: int, dtype: int, tag: int, number: int) -> None:
    letter = Letter(kind, dtype, 12, tag, number, 12, number)
    assert unpack_from(bytearray(pack(letter)), 0, most=12) == letter
    assert len(pack(letter)) == LETTER_BYTES


@pytest.mark.parametrize(
    ("letter", "text"),
    [(Letter(0), "has 0 as its kind"), (Letter(8), "has 8 as its kind"), (Letter(1, length=99), "announces 99 bytes")],
)
def test_what_is_no_letter_is_refused(letter: Letter, text: str) -> None:
    with pytest.raises(WireError, match=text):
        unpack_from(bytearray(pack(letter)), 0, most=98)


def test_a_message_is_described_by_its_elements() -> None:
    assert describe(9, 32) == "8 elements of float32 (32 bytes)"
