"""What an agent is told: all of it on one line, and the token nowhere else."""

from __future__ import annotations

import msgspec

from shoal.engines.nodes.provider import Errand, WayIn
from shoal.values import Address

WAY_IN = WayIn(Address("10.0.0.7", 7000), "a-secret-token")


def test_an_agent_reads_what_its_launcher_wrote() -> None:
    errand = msgspec.json.decode(WAY_IN.errand_line("b", 4, is_warned=True), type=Errand)
    assert errand == Errand(address=WAY_IN.address, token="a-secret-token", node="b", slots=4, is_warned=True)


def test_the_token_is_not_shown_where_values_are_printed() -> None:
    """Clusters write the arguments of a task that failed into their logs."""
    errand = msgspec.json.decode(WAY_IN.errand_line("b"), type=Errand)
    for shown in (repr(WAY_IN), str(WAY_IN), repr(errand), f"{errand}", repr([errand])):
        assert "10.0.0.7" in shown
        assert "secret" not in shown
