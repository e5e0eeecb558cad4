"""Which parameter servers are started when: numbers are never given again, and nobody is replaced without end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.launching import texts
from shoal.launching.servers.server_posts import MOST_FRUITLESS, MOST_LOSSES, START_SECONDS, ServerPosts

KILLED = "was killed by SIGKILL"


def started(posts: ServerPosts, now: float = 0.0) -> list[int]:
    return [opening.server for opening in posts.take_due(now)]


def joined(count: int) -> ServerPosts:
    posts = ServerPosts(count)
    for server in started(posts):
        posts.joined(server)
    return posts


def test_all_begin_at_once_and_each_loss_is_made_up_for_at_once() -> None:
    posts = joined(3)
    assert posts.running == (0, 1, 2)
    assert posts.next_due is None
    assert posts.exited(1, KILLED, now=9.0)
    assert posts.next_due == 9.0
    [opening] = posts.take_due(9.0)
    assert (opening.server, opening.reason) == (3, "server 1 was killed by SIGKILL")
    assert posts.running == (0, 2, 3)


def test_replacements_are_counted_on_until_they_have_joined_or_taken_too_long() -> None:
    posts = ServerPosts(2)
    assert posts.coming(0.0) == 2
    first, second = started(posts)
    posts.joined(first)
    assert posts.coming(0.0) == 1
    posts.joined(second)
    assert posts.coming(0.0) == 0
    posts.exited(first, KILLED, now=9.0)
    assert posts.coming(9.0) == 1
    assert started(posts, 9.0) == [2]
    assert posts.coming(9.0 + START_SECONDS - 1) == 1
    assert posts.coming(9.0 + START_SECONDS) == 0


def test_nobody_counts_on_servers_that_are_not_started_any_more() -> None:
    posts = ServerPosts(1)
    for _ in range(MOST_FRUITLESS):
        [server] = started(posts, now=1e6)
        posts.exited(server, "exited with code 1", now=0.0)
    assert posts.given_up
    assert posts.coming(0.0) == 0


def test_one_that_was_asked_to_go_is_not_replaced() -> None:
    posts = joined(2)
    posts.leaving(1)
    assert not posts.exited(1, "exited with code 0", now=5.0)
    assert posts.next_due is None
    assert posts.running == (0,)


def test_more_servers_get_the_next_numbers() -> None:
    posts = joined(2)
    posts.more(2, now=5.0)
    assert started(posts, 5.0) == [2, 3]


def test_servers_that_never_join_are_waited_for_longer_and_then_given_up() -> None:
    posts = ServerPosts(1)
    now, pauses = 0.0, []
    while not posts.given_up:
        [server] = started(posts, now)
        assert posts.exited(server, "exited with code 1", now)
        if posts.next_due is not None:
            pauses.append(posts.next_due - now)
            now = posts.next_due
    assert pauses == sorted(pauses)
    assert pauses[0] > 0
    assert len(pauses) == MOST_FRUITLESS - 1
    assert posts.given_up == texts.servers_never_join(5, "exited with code 1")
    assert posts.is_hopeless
    assert started(posts, now + 1000) == []


def test_a_blow_that_kills_all_servers_while_they_start_counts_once() -> None:
    posts, now = ServerPosts(3), 0.0
    for _ in range(MOST_FRUITLESS - 1):
        for server in started(posts, now):
            posts.exited(server, KILLED, now)
        assert not posts.given_up
        now += 10
    for server in started(posts, now):
        posts.joined(server)
    assert len(posts.serving) == 3


def test_a_group_that_still_serves_is_not_hopeless() -> None:
    posts = joined(2)
    posts.exited(1, KILLED, 0.0)
    now = 0.0
    while not posts.given_up:
        now += 10
        [server] = started(posts, now)
        posts.exited(server, "exited with code 1", now)
    assert not posts.is_hopeless
    posts.exited(0, KILLED, now)
    assert posts.is_hopeless


def test_losses_that_are_spread_out_have_no_limit_and_others_have() -> None:
    posts = joined(1)
    for hour in range(3 * MOST_LOSSES):
        [server] = [*posts.running]
        posts.exited(server, KILLED, 3600.0 * hour)
        [server] = started(posts, 3600.0 * hour)
        posts.joined(server)
    assert not posts.given_up
    for second in range(MOST_LOSSES + 1):
        now = 1e6 + second
        [server] = posts.running or started(posts, now)
        posts.joined(server)
        posts.exited(server, KILLED, now)
    assert "51 were lost within a minute" in posts.given_up


@given(st.lists(st.sampled_from(["exit", "join", "more", "start", "leave"]), max_size=60), st.integers(1, 4))
def test_no_number_is_given_twice_and_posts_are_never_overfilled(moves: list[str], count: int) -> None:
    posts = ServerPosts(count)
    given_out, wanted, now = started(posts), count, 0.0
    for move in moves:
        now += 100.0
        if move == "start":
            given_out += started(posts, now)
        elif move == "more":
            posts.more(1, now)
            wanted += 1
        elif posts.running and move == "join":
            posts.joined(posts.running[0])
        elif posts.running and move in ("exit", "leave"):
            if move == "leave":
                posts.leaving(posts.running[0])
                wanted -= 1
            posts.exited(posts.running[0], KILLED, now)
        assert len(posts.running) <= wanted
    assert given_out == sorted(set(given_out))
