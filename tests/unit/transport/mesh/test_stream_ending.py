"""Who is named when streams end: the dead before those who stopped because of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from shoal.transport.mesh.stream_ending import (
    CUT_OFF,
    DIED,
    ENDING_BYTES,
    FINISHED,
    SILENT,
    StreamEnding,
    credible,
    name_the_lost,
    pack_ending,
    unpack_ending,
)
from shoal.wire.frames import HEADER_BYTES, MAGIC

GAVE_UP = StreamEnding(announced=True)


def blames(rank: int) -> StreamEnding:
    return StreamEnding(announced=True, blamed=rank)


@given(some.binary(max_size=50), some.booleans(), some.none() | some.integers(0, 10_000))
def test_an_ending_is_read_from_the_end_of_whatever_came_before(before: bytes, clean: bool, blamed: int | None) -> None:
    ending = StreamEnding(announced=True, clean=clean, blamed=blamed)
    assert unpack_ending(before + pack_ending(ending)) == ending


@given(some.binary(max_size=100))
def test_other_bytes_are_no_ending(data: bytes) -> None:
    assert unpack_ending(data) == (CUT_OFF if data else DIED)


def test_an_ending_is_never_taken_for_a_header() -> None:
    assert ENDING_BYTES < HEADER_BYTES
    assert not pack_ending(FINISHED).startswith(MAGIC)


def test_the_dead_are_named_before_those_who_were_cut_off_or_gave_up() -> None:
    lost = name_the_lost({1: CUT_OFF, 2: DIED, 3: GAVE_UP}, own=0, awaited=1)
    assert lost is not None
    assert lost.peer == 2


def test_a_rank_that_says_whom_it_lost_is_believed() -> None:
    lost = name_the_lost({1: blames(4), 2: CUT_OFF}, own=0, awaited=2)
    assert lost is not None
    assert lost.peer == 4
    assert "says rank 1" in str(lost)


def test_the_awaited_is_named_where_nothing_is_known() -> None:
    lost = name_the_lost({1: CUT_OFF, 2: CUT_OFF}, own=0, awaited=2)
    assert lost is not None
    assert lost.peer == 2


def test_finished_ranks_are_missed_only_by_those_who_wait_for_them() -> None:
    assert name_the_lost({1: FINISHED, 2: FINISHED}, own=0, awaited=None) is None
    assert name_the_lost({1: FINISHED}, own=0, awaited=3) is None
    lost = name_the_lost({1: FINISHED}, own=0, awaited=1)
    assert lost is not None
    assert "had finished" in str(lost)


def test_a_rank_never_names_itself() -> None:
    """Rank 1 cannot reach us, tells rank 2, and both leave: we cannot tell more than that they left."""
    lost = name_the_lost({1: blames(0), 2: blames(0)}, own=0, awaited=2)
    assert lost is not None
    assert lost.peer == 2


def test_a_machine_that_does_not_answer_is_said_to_be_out_of_reach_not_dead() -> None:
    lost = name_the_lost({1: SILENT}, own=0, awaited=1)
    assert lost is not None
    assert lost.peer == 1
    assert "does not answer" in str(lost)


@given(some.integers(4, 2**31 - 1))
def test_a_rank_that_is_not_there_is_not_blamed(blamed: int) -> None:
    said = blames(blamed)
    assert credible(said, 4) == StreamEnding(announced=True)
    assert credible(said, blamed + 1) == said
