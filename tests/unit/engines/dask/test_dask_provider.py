"""The task on a Dask worker: it runs an agent to its end and says how that was, and keeps its secret."""

from __future__ import annotations

from shoal.engines import texts
from shoal.engines.dask.dask_provider import ErrandLine, run_task
from shoal.engines.nodes.provider import AGENT_HAS_NO_WAY, WayIn
from shoal.values import Address


def test_an_agent_that_is_told_nonsense_says_so() -> None:
    assert run_task(ErrandLine(b"nonsense\n")) == (2, texts.NO_ERRAND)


def test_an_agent_that_finds_no_launcher_says_where_it_looked() -> None:
    nobody = Address("127.0.0.1", 1)
    code, said = run_task(ErrandLine(WayIn(nobody, "token").errand_line("a", 1)))
    assert code == AGENT_HAS_NO_WAY
    assert said.startswith(texts.agent_has_no_way("a", nobody, ""))


def test_the_token_is_not_in_what_dask_writes_into_its_logs() -> None:
    """Dask logs the arguments of a task that fails as `repr` has them."""
    assert "token" not in repr(ErrandLine(WayIn(Address("127.0.0.1", 1), "token").errand_line("a", 1)))
