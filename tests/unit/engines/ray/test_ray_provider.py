"""Why there is no agent in a Ray cluster, or no longer, in words for users."""

from __future__ import annotations

from shoal.engines import texts as engine_texts
from shoal.engines.ray import texts
from shoal.engines.ray.ray_provider import rays_words, why_lost, why_no_agent

DIED = (
    "The actor died unexpectedly before finishing this task.",
    "\tclass_name: AgentActor",
    "The actor died because its node has died. Node Id: a1b2c3d4",
    "\tthe actor's node was terminated unexpectedly: health check failed",
    "The actor never ran - it was cancelled before it started running.",
)


def test_the_cause_is_quoted_of_what_ray_says() -> None:
    assert rays_words(DIED) == DIED[2]
    assert rays_words(("something else", "")) == "something else"
    assert why_lost(None, DIED) == texts.ray_lost(DIED[2])
    assert why_no_agent("a", None, DIED) == texts.no_ray_agent(DIED[2])


def test_an_agent_that_finds_no_way_to_the_launcher_says_what_to_do() -> None:
    said = engine_texts.agent_has_no_way("a", "10.0.0.1:7000", "No route to host")
    assert why_no_agent("a", 3, ("noise", said)) == engine_texts.no_way_back(said)


def test_an_agent_that_ended() -> None:
    assert why_no_agent("a", 1, ("oops",)) == engine_texts.agent_ended("a", 1, "oops")
    assert why_lost(0, ()) == engine_texts.AGENT_ENDED
    assert why_lost(1, ("oops",)) == engine_texts.agent_failed(1, "oops")
