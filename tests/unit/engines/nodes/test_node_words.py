"""What the user hears of a node that is not there: each thing once, and nothing that is known already."""

from __future__ import annotations

from shoal.engines import texts
from shoal.engines.nodes.node_words import MOST_TOLD, NodeWords
from shoal.engines.nodes.provider import NodeGone

GONE = NodeGone("b", "ssh cannot reach b", "the ssh connection to it ended")


def test_why_a_node_was_lost_is_told_when_its_provider_knows() -> None:
    words = NodeWords()
    words.lost("b")
    assert words.is_awaited
    assert words.news(GONE) == texts.node_gone("b", "the ssh connection to it ended")
    assert not words.is_awaited


def test_that_an_agent_has_ended_is_no_news_where_its_connection_has_closed() -> None:
    words = NodeWords()
    words.lost("b")
    assert words.news(NodeGone("b", "the agent on node b ended with code 0", texts.AGENT_ENDED)) == ""


def test_a_failed_try_is_told_once_until_the_node_comes_back() -> None:
    words = NodeWords()
    assert [words.news(GONE) for _ in range(3)] == [GONE.reason, "", ""]
    assert words.news(NodeGone("b", "no login")) == "no login"
    assert words.news(NodeGone("c", "no login")) == "no login"
    words.came("b")
    assert words.news(GONE) == GONE.reason


def test_the_end_of_an_agent_that_was_sent_away_is_no_news() -> None:
    words = NodeWords()
    words.refused("b")
    assert words.news(NodeGone("b", "the agent on node b ended with code 0")) == ""
    assert words.news(NodeGone("b", "ssh cannot reach b")) == "ssh cannot reach b"


def test_words_that_differ_each_time_do_not_fill_the_screen() -> None:
    words = NodeWords()
    told = [words.news(NodeGone("b", f"task {number} failed")) for number in range(3 * MOST_TOLD)]
    assert sum(map(bool, told)) == MOST_TOLD
