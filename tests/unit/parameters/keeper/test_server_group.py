"""The keeper's decisions: maps follow each other so that what a placement promises is always held by somebody."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import Refused, UsageError
from shoal.parameters import texts
from shoal.parameters.keeper.group_events import GroupEvent, GroupServerJoined, GroupServerLost, MapMade, ServerRemoved
from shoal.parameters.keeper.server_group import KEPT_DEPARTURES, GroupSettings, ServerGroup
from shoal.parameters.keeper.space_terms import SpaceTerms
from shoal.values import ServerMap
from shoal.wire.keeper_messages import Lost
from support.model_tables import server


def complete_group(count: int, replicas: int = 1) -> ServerGroup:
    group = ServerGroup(GroupSettings(count, replicas))
    for number in range(count):
        group.join(server(number), now=0.0)
    return group


def present(group: ServerGroup) -> ServerMap:
    assert group.map is not None
    return group.map


def numbers(made: ServerMap) -> tuple[int, ...]:
    return tuple(server.number for server in made.servers)


def fill(group: ServerGroup, now: float = 0.0, size: int = 0) -> list[GroupEvent]:
    """All servers say that they hold what is theirs."""
    made = present(group)
    return [event for number in made.after for event in group.filled(number, made.version, size, now)]


def test_the_first_map_waits_for_all_servers_and_is_settled() -> None:
    group = ServerGroup(GroupSettings(3, 2))
    assert group.join(server(2), 0.0) == [GroupServerJoined(server(2))]
    group.join(server(0), 1.0)
    assert group.map is None
    joined, made = group.join(server(1), 2.0)
    assert joined == GroupServerJoined(server(1))
    assert made == MapMade(present(group), seconds=0.0, size=0)
    assert present(group).is_settled
    assert (numbers(present(group)), present(group).version, present(group).replicas) == ((0, 1, 2), 1, 2)
    assert present(group).home == server(0)


def test_after_a_death_the_living_make_the_next_placement_and_the_map_settles_when_all_are_filled() -> None:
    group = complete_group(3, replicas=2)
    lost, made = group.lose(1, "it closed the connection", 10.0)
    assert lost == GroupServerLost(1, "it closed the connection")
    assert isinstance(made, MapMade)
    assert (made.map.before, made.map.after, numbers(made.map)) == ((0, 1, 2), (0, 2), (0, 2))
    assert "server 1 was lost: it closed the connection" in made.map.reason
    assert group.filled(0, made.map.version, 100, 10.5) == []
    assert group.filled(0, made.map.version, 100, 10.6) == [], "said twice"
    assert group.filled(2, made.map.version - 1, 100, 10.7) == [], "of an old map"
    (settled,) = group.filled(2, made.map.version, 40, 12.0)
    assert settled == MapMade(present(group), seconds=2.0, size=140)
    assert (present(group).before, present(group).is_settled) == ((0, 2), True)


def test_a_replacement_that_joins_while_blocks_move_makes_everybody_fill_again() -> None:
    group = complete_group(3, replicas=2)
    group.lose(0, "died", 0.0)
    group.filled(1, present(group).version, 0, 0.5)
    group.join(server(7), 1.0)
    assert (present(group).before, present(group).after, numbers(present(group))) == ((0, 1, 2), (1, 2, 7), (1, 2, 7))
    version = present(group).version
    assert group.filled(2, version, 0, 2.0) == group.filled(7, version, 0, 2.0) == [], "1 was filled for less"
    assert group.filled(1, version, 0, 3.0) == [MapMade(present(group), seconds=3.0, size=0)]
    assert present(group).before == (1, 2, 7)


def test_a_newcomer_that_dies_before_it_is_filled_leaves_the_settled_placement() -> None:
    group = complete_group(2)
    group.join(server(2), 0.0)
    assert not present(group).is_settled
    group.lose(2, "died", 1.0)
    assert present(group).is_settled
    assert present(group).version == 3


def test_a_server_that_is_taken_out_stays_until_its_blocks_have_moved() -> None:
    group = complete_group(3)
    group.remove([0], 0.0)
    assert (present(group).after, numbers(present(group))) == ((1, 2), (0, 1, 2))
    assert present(group).home == server(0)
    assert group.remove([0], 0.0) == [], "said twice"
    assert fill(group)[-1] == ServerRemoved(0)
    assert numbers(present(group)) == (1, 2)
    assert group.lose(0, "it closed the connection", 1.0) == [], "it went as asked"


def test_a_map_tells_who_went_and_why_also_to_those_who_missed_the_one_before() -> None:
    group = complete_group(4)
    group.lose(1, "nothing was heard of it for 1.6 s", 0.0)
    group.remove([0], 0.0)
    fill(group)
    assert [(gone.number, gone.is_wanted) for gone in present(group).departures] == [(1, False), (0, True)]
    assert present(group).departures[0].reason == "nothing was heard of it for 1.6 s"
    for number in range(4, 4 + 2 * KEPT_DEPARTURES):
        group.join(server(number), 0.0)
        group.lose(number, "died", 0.0)
    assert len(present(group).departures) == KEPT_DEPARTURES
    assert present(group).departures[-1].number == 3 + 2 * KEPT_DEPARTURES


def test_a_map_that_settles_without_some_blocks_says_so() -> None:
    group = complete_group(3)
    group.lose(1, "died", 0.0)
    group.lost(0, Lost(view=present(group).version, job="job", blocks=5, size=9000))
    group.lose(2, "died", 0.0)
    group.lost(0, Lost(view=present(group).version - 1, job="job", blocks=5, size=9000))  # on its way before that map
    for job, blocks in (("job", 5), ("job", 7), ("other", 1)):  # what was said again counts once
        group.lost(0, Lost(view=present(group).version, job=job, blocks=blocks, size=1000 * blocks))
    fill(group)
    assert present(group).is_settled
    assert present(group).reason == (
        "8 blocks (8,000 bytes) have to be restored from a checkpoint; all others are in place"
    )
    group.join(server(3), 0.0)
    fill(group)
    assert present(group).reason == "all blocks are in place", "those lost before are no news"


def test_whoever_was_to_leave_stays_when_the_others_die() -> None:
    group = complete_group(2)
    group.remove([0], 0.0)
    group.lose(1, "died", 1.0)
    assert (present(group).after, numbers(present(group))) == ((0,), (0,))


def test_when_all_died_the_next_one_starts_afresh() -> None:
    group = complete_group(2)
    group.lose(0, "died", 1.0)
    last = present(group)
    assert group.lose(1, "died", 2.0) == [GroupServerLost(1, "died")]
    assert group.map == last, "there is nobody to be told of"
    group.join(server(2), 3.0)
    assert present(group).is_settled
    assert numbers(present(group)) == (2,)
    assert present(group).version > last.version
    assert "all others were lost" in present(group).reason


def test_home_stays_though_one_with_a_lower_number_comes_later() -> None:
    """As when several are started at once in the place of all that died: workers meet at whoever is home."""
    group = complete_group(2)
    for number in (0, 1):
        group.lose(number, "died", 1.0)
    group.join(server(3), 2.0)
    group.join(server(2), 2.1)
    assert (present(group).home, numbers(present(group)), present(group).after) == (server(3), (3, 2), (2, 3))
    group.lose(3, "died", 3.0)
    assert present(group).home == server(2)


def test_numbers_are_never_used_twice() -> None:
    group = complete_group(2)
    with pytest.raises(Refused, match="server number 1 was used before"):
        group.join(server(1), 0.0)
    group.lose(1, "died", 0.0)
    with pytest.raises(Refused, match="server number 1 was used before"):
        group.join(server(1), 0.0)


def test_removals_that_cannot_be_are_refused_with_figures() -> None:
    group = complete_group(3, replicas=2)
    with pytest.raises(Refused, match=r"no server 7, 9 .* there are 0, 1, 2"):
        group.remove([9, 7], 0.0)
    with pytest.raises(Refused, match=r"without server 0, 1 the group has 1.* 2 replicas"):
        group.remove([0, 1], 0.0)
    with pytest.raises(Refused, match="not complete"):
        ServerGroup(GroupSettings(2)).remove([0], 0.0)


@pytest.mark.parametrize(("expected", "replicas"), [(0, 1), (2, 3), (2, 0)])
def test_groups_that_cannot_be_are_refused(expected: int, replicas: int) -> None:
    with pytest.raises(UsageError) as caught:
        GroupSettings(expected, replicas)
    assert str(caught.value) == (texts.bad_replicas(replicas, expected) if expected else texts.no_servers(expected))


def test_job_names_belong_to_one_token() -> None:
    group = complete_group(1)
    group.open(SpaceTerms(job="a", key="one", quota=5))
    group.open(SpaceTerms(job="a", key="one", quota=7))
    assert group.spaces["a"].quota == 7
    with pytest.raises(Refused, match="a job named a uses this group already"):
        group.open(SpaceTerms(job="a", key="two", quota=0))
    group.close("a")
    group.close("a")
    group.open(SpaceTerms(job="a", key="two", quota=0))
    names = ("", "x" * 999, "a\nb")
    for wrong in (*(SpaceTerms(name, "t", 0) for name in names), SpaceTerms("b", "", 0), SpaceTerms("b", "t", -1)):
        with pytest.raises(Refused, match=r"printable|quota"):
            group.open(wrong)


class World:
    """Servers that join, die, fill and leave at random, and what each of them would hold."""

    def __init__(self, group: ServerGroup) -> None:
        self.group = group
        self.alive: set[int] = set()
        self.joined = 0
        self.version = 0
        self.home: int | None = None
        self.held: set[tuple[int, tuple[int, ...]]] = set()  # (server, placement whose part it holds all of)

    def act(self, action: str, choice: int) -> list[GroupEvent]:
        made = self.group.map
        if action == "join":
            self.alive.add(self.joined)
            self.joined += 1
            return self.group.join(server(self.joined - 1), 0.0)
        if action == "lose":
            self.alive.discard(choice)
            return self.group.lose(choice, "died", 0.0)
        if action == "remove" and self.alive:
            with contextlib.suppress(Refused):
                return self.group.remove([sorted(self.alive)[choice % len(self.alive)]], 0.0)
        if action in ("fill", "fill late") and made is not None and self.alive.issuperset(made.after):
            number = made.after[choice % len(made.after)]
            if action == "fill":
                self.held.add((number, made.after))
            return self.group.filled(number, made.version - (action == "fill late"), 1, 0.0)
        return []

    def take(self, event: GroupEvent) -> None:
        if isinstance(event, ServerRemoved):
            self.alive.discard(event.number)
        if isinstance(event, MapMade):
            assert event.map.version == self.version + 1
            self.version += 1
            if self.version == 1 or "all others were lost" in event.map.reason:
                self.held |= {(number, event.map.before) for number in event.map.before}  # nothing, so all of it
            self.held = {(number, placement) for number, placement in self.held if placement == event.map.before}

    def check(self) -> None:
        made = self.group.map
        if made is None or not self.alive:
            return
        living = set(numbers(made))
        assert living == self.alive & {*made.before, *made.after}
        assert set(made.after) <= living
        assert all((number, made.before) in self.held for number in made.before if number in living)
        assert made.home.number == self.home or self.home not in self.alive, "home changes only when it goes"
        self.home = made.home.number


actions = st.tuples(
    st.sampled_from(["join", "join", "lose", "fill", "fill", "fill", "remove", "fill late"]), st.integers(0, 12)
)


@settings(deadline=None)
@given(script=st.lists(actions, max_size=60), expected=st.integers(1, 4), replicas=st.integers(1, 3))
def test_the_complete_placement_is_always_held_by_its_living_servers(
    script: list[tuple[str, int]], expected: int, replicas: int
) -> None:
    world = World(ServerGroup(GroupSettings(expected, min(replicas, expected))))
    for action, choice in script:
        for event in world.act(action, choice):
            world.take(event)
        world.check()
    if world.group.map is not None and world.alive:
        fill(world.group)
        assert present(world.group).is_settled, "all are filled: nothing is left to wait for"
