"""Parts that fit are joined; parts that do not are found out, whatever is wrong."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as some

from shoal.checkpoint import texts
from shoal.checkpoint.published.joining import gap_in, join
from shoal.checkpoint.published.manifest import About, PartIndex, StoredSlice, TensorEntry
from shoal.errors import CheckpointUnusable
from shoal.values import Cursor, Generation

Box = tuple[tuple[int, ...], tuple[int, ...]]  # offset and shape


@some.composite
def cut_up(draw: some.DrawFn) -> TensorEntry:
    """A tensor in boxes, made by cutting one of them in two again and again."""
    shape = tuple(draw(some.lists(some.integers(1, 6), min_size=1, max_size=3)))
    boxes: list[Box] = [((0,) * len(shape), shape)]
    for _ in range(draw(some.integers(0, 5))):
        offset, size = boxes.pop(draw(some.integers(0, len(boxes) - 1)))
        axis = draw(some.integers(0, len(shape) - 1))
        at = draw(some.integers(0, size[axis]))
        boxes.append((offset, (*size[:axis], at, *size[axis + 1 :])))
        moved = (*offset[:axis], offset[axis] + at, *offset[axis + 1 :])
        boxes.append((moved, (*size[:axis], size[axis] - at, *size[axis + 1 :])))
    pieces = [piece(offset, size, number) for number, (offset, size) in enumerate(draw(some.permutations(boxes)))]
    return TensorEntry(name="t", dtype="float32", shape=shape, pieces=tuple(pieces))


def piece(offset: tuple[int, ...], shape: tuple[int, ...], number: int = 0) -> StoredSlice:
    return StoredSlice(
        file="part", key=f"t@{number}", offset=offset, shape=shape, size=4 * math.prod(shape), checksum="0" * 16
    )


@given(cut_up())
def test_pieces_that_cover_a_tensor_are_accepted(entry: TensorEntry) -> None:
    assert gap_in(entry) == ""


@given(cut_up(), some.data())
def test_a_piece_that_is_lost_doubled_or_moved_is_found(entry: TensorEntry, data: some.DataObject) -> None:
    number = data.draw(some.integers(0, len(entry.pieces) - 1))
    chosen = entry.pieces[number]
    assume(math.prod(chosen.shape))
    others = entry.pieces[:number] + entry.pieces[number + 1 :]
    axis = data.draw(some.integers(0, len(entry.shape) - 1))
    moved = list(chosen.offset)
    moved[axis] += data.draw(some.sampled_from([-1, 1]))
    for pieces in (others, (*entry.pieces, chosen), (*others, piece(tuple(moved), chosen.shape))):
        assert gap_in(msgspec.structs.replace(entry, pieces=pieces)) != ""


def test_a_tensor_without_dimensions_is_one_piece() -> None:
    whole = TensorEntry(name="t", dtype="float32", shape=(), pieces=(piece((), ()),))
    assert gap_in(whole) == ""
    assert gap_in(msgspec.structs.replace(whole, pieces=())) == texts.not_whole("t")
    assert "another number of dimensions" in gap_in(msgspec.structs.replace(whole, pieces=(piece((0,), (1,)),)))


def about(**changes: Any) -> About:
    generation = Generation(number=1, members=(), schedule="ring", codec="identity", reason="start")
    made = About(
        kind="full",
        step=5,
        generation=generation,
        cursor=Cursor(),
        loop=1,
        first_step=0,
        config="",
        tree=msgspec.Raw(b"{}"),
        reason="",
    )
    return msgspec.structs.replace(made, **changes)


def entry(*pieces: StoredSlice, **changes: Any) -> TensorEntry:
    return msgspec.structs.replace(TensorEntry("t", "float32", (4,), pieces), **changes)


FIRST, SECOND = piece((0,), (2,)), piece((2,), (2,), 1)


def test_parts_that_fit_are_joined_in_their_order() -> None:
    indexes = [PartIndex(tensors=(entry(FIRST),), about=about()), PartIndex(tensors=(entry(SECOND),))]
    assert join(indexes, checkpoint="step-00000005-g1") == (about(), (entry(FIRST, SECOND),))


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (PartIndex(tensors=(entry(FIRST),)), PartIndex(tensors=(entry(SECOND),)), texts.descriptions(0)),
        (
            PartIndex(tensors=(entry(FIRST),), about=about()),
            PartIndex(tensors=(entry(SECOND),), about=about()),
            texts.descriptions(2),
        ),
        (
            PartIndex(tensors=(entry(FIRST),), about=about(step=6)),
            PartIndex(tensors=(entry(SECOND),)),
            texts.of_another_step(6, 1),
        ),
        (PartIndex(tensors=(entry(FIRST),), about=about()), PartIndex(tensors=()), texts.DIFFERENT_COUNTS),
        (
            PartIndex(tensors=(entry(FIRST),), about=about()),
            PartIndex(tensors=(entry(SECOND, dtype="int32"),)),
            texts.disagreement("t"),
        ),
        (
            PartIndex(tensors=(entry(FIRST),), about=about()),
            PartIndex(tensors=(entry(),)),
            texts.not_whole("t"),
        ),
    ],
)
def test_parts_that_are_not_one_state_are_refused(first: PartIndex, second: PartIndex, words: str) -> None:
    with pytest.raises(CheckpointUnusable, match=texts.in_checkpoint("step-00000005-g1", words)):
        join([first, second], checkpoint="step-00000005-g1")
