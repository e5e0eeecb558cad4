"""Blocks that a server fetches: each is asked for once, in portions, one at a time from each source."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.parameters.server.space.filling import PORTION_BYTES, Filling

SIZES = st.dictionaries(st.integers(0, 200), st.integers(1, PORTION_BYTES), max_size=40)


@given(SIZES, st.data())
def test_every_block_is_asked_for_once_and_no_source_for_two_portions_at_a_time(
    sizes: dict[int, int], data: st.DataObject
) -> None:
    sources = {block: data.draw(st.integers(0, 3)) for block in sizes}
    fetches = {source: [block for block in sizes if sources[block] == source] for source in range(4)}
    filling = Filling(fetches, sizes)
    asked: list[int] = []
    under_way = filling.due()
    while under_way:
        assert len({portion.source for portion in under_way}) == len(under_way)
        portion = under_way.pop(data.draw(st.integers(0, len(under_way) - 1)))
        assert {sources[block] for block in portion.blocks} == {portion.source}
        assert len(portion.blocks) == 1 or sum(sizes[block] for block in portion.blocks) <= PORTION_BYTES
        assert filling.asked(portion.source) == portion
        assert not filling.is_over
        asked += portion.blocks
        assert filling.arrived(portion.source, portion.request, portion.blocks)
        assert not filling.arrived(portion.source, portion.request, portion.blocks)  # once
        under_way += filling.due()
    assert sorted(asked) == sorted(sizes)
    assert filling.is_over
    assert filling.size == sum(sizes.values())


def test_a_source_may_lack_blocks_but_not_send_others() -> None:
    filling = Filling({1: (4, 5)}, {4: 10, 5: 20})
    (portion,) = filling.due()
    assert not filling.arrived(1, portion.request, (4, 6))
    assert not filling.arrived(2, portion.request, (4,))
    assert not filling.is_over
    assert filling.arrived(1, portion.request, (5,))
    assert (filling.is_over, filling.size) == (True, 20)
