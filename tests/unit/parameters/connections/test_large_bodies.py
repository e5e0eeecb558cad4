"""Room for large bodies: never more than there is, one after the other, and never nobody's turn."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from shoal.parameters.connections.large_bodies import LargeBodies


class Asker:
    def __init__(self) -> None:
        self.has_room = False

    def let_grow(self) -> None:
        assert not self.has_room
        self.has_room = True


@given(some.lists(some.tuples(some.integers(1, 150), some.integers(0, 5)), max_size=30))
def test_everybody_gets_room_in_turn(asked: list[tuple[int, int]]) -> None:
    """Sizes, and which of those that have room is done after each."""
    bodies, sizes, waiting, holding = LargeBodies(100), dict[Asker, int](), list[Asker](), list[Asker]()

    def settle() -> None:
        for asker in [asker for asker in waiting if asker.has_room]:
            assert asker is waiting[0], "in order of arrival"
            waiting.remove(asker)
            holding.append(asker)
        assert sum(sizes[asker] for asker in holding) <= 100 or len(holding) == 1
        assert holding or not waiting

    for size, done in asked:
        asker = Asker()
        sizes[asker] = size
        if bodies.ask(asker, size):
            holding.append(asker)
        else:
            waiting.append(asker)
        settle()
        if done < len(holding):
            bodies.done(holding.pop(done))
            settle()
    while holding:
        bodies.done(holding.pop())
        settle()
    assert not waiting
