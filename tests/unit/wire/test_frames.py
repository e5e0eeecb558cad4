"""Headers survive the wire, and bytes that are no header of this generation are refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as some

from shoal.errors import Refused, WireError
from shoal.wire.frames import HEADER_BYTES, LABEL_BYTES, FrameHeader, FrameKind, ReductionCode, cut_label, pack, unpack

headers = some.builds(
    FrameHeader,
    kind=some.sampled_from(FrameKind),
    reduction=some.sampled_from(ReductionCode),
    codec=some.integers(0, 255),
    dtype=some.integers(0, 255),
    generation=some.integers(0, 2**32 - 1),
    sequence=some.integers(0, 2**62),
    transfer=some.integers(0, 2**32 - 1),
    elements=some.integers(0, 2**48),
    payload=some.integers(0, 2**48),
    label=some.text(max_size=100).map(cut_label),
)
EXAMPLE = FrameHeader(
    kind=FrameKind.ALL_REDUCE,
    reduction=ReductionCode.SUM,
    codec=0,
    dtype=9,
    generation=3,
    sequence=12,
    transfer=1,
    elements=100,
    payload=400,
    label="gradients 3",
)


@given(headers)
def test_a_header_arrives_as_it_was_sent(header: FrameHeader) -> None:
    data = pack(header)
    assert len(data) == HEADER_BYTES
    assert unpack(data, generation=header.generation) == header


@given(some.text(some.characters(codec=None), max_size=100))
def test_any_label_is_cut_between_characters_to_what_arrives(label: str) -> None:
    cut = cut_label(label)
    assert len(cut.encode()) <= LABEL_BYTES
    assert cut_label(cut) == cut
    assert unpack(pack(_with(label=label)), generation=3).label == cut
    if len(label.encode("utf-8", "replace")) <= LABEL_BYTES:
        assert cut == label.encode("utf-8", "replace").decode()


def test_a_long_label_keeps_every_whole_character_that_fits() -> None:
    assert cut_label("ä" * 40) == "ä" * 32
    assert cut_label("a" + "ä" * 40) == "a" + "ä" * 31


@given(some.binary(max_size=2 * HEADER_BYTES))
def test_garbage_is_a_wire_error(data: bytes) -> None:
    with pytest.raises(WireError):
        unpack(data, generation=1)


@given(some.integers(0, HEADER_BYTES - 1), some.integers(0, 255))
def test_a_damaged_header_is_refused_or_says_something_else(position: int, value: int) -> None:
    """No damage to one byte raises anything but our errors, and none goes unseen."""
    data = bytearray(pack(EXAMPLE))
    if data[position] == value:
        return
    data[position] = value
    with contextlib.suppress(WireError, Refused):
        assert unpack(data, generation=3) != EXAMPLE


def test_a_frame_of_another_generation_is_refused() -> None:
    with pytest.raises(Refused, match="generation 3 arrived in generation 4"):
        unpack(pack(EXAMPLE), generation=4)


@pytest.mark.parametrize("field", ["codec", "dtype", "generation", "sequence", "transfer", "elements", "payload"])
def test_a_number_that_does_not_fit_is_not_sent(field: str) -> None:
    for value in (-1, 2**64):
        with pytest.raises(WireError, match="cannot hold"):
            pack(_with(**{field: value}))


def test_a_payload_longer_than_memory_is_refused() -> None:
    with pytest.raises(WireError, match="announces"):
        unpack(pack(_with(payload=2**48 + 1)), generation=3)


def _with(**changes: object) -> FrameHeader:
    return FrameHeader(**{name: getattr(EXAMPLE, name) for name in EXAMPLE.__struct_fields__} | changes)


@pytest.mark.parametrize("name", ["elements", "sequence"])
def test_numbers_that_no_tensor_and_no_group_gets_to_are_refused(name: str) -> None:
    with pytest.raises(WireError, match=r"at most|the last one"):
        unpack(pack(_with(**{name: 2**63})), generation=3)
