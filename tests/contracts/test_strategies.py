"""What every strategy keeps, whatever happens: each sample counts once, and all replicas end with the same bits.

Workers are threads around the live training code (`support.training`), servers are threads too. To try a strategy of
your own, add it to `STRATEGIES`; `support/local_steps.py` is an example of one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import shoal
from shoal.checkpoint.published.catalogue import published
from shoal.checkpoint.published.store_publisher import StorePublisher
from shoal.checkpoint.stores.local_store import LocalStore
from shoal.codecs.registry import codec_by_name
from shoal.entry.shoal_main import MakeStrategy
from shoal.events import EpochEnded, StateCopied, StepsApplied, StepVoided
from shoal.job_config import JobConfig
from shoal.manners import Manners
from shoal.parameters.client.parameter_client import ParameterClient
from shoal.strategies.choosing import make_strategy
from shoal.strategies.replica.replica import Replica
from shoal.strategies.strategy import Strategy
from support.local_steps import LocalSteps
from support.offers import CODECS, offer
from support.server_groups import group_of
from support.training import Crew, Hub, Killed
from support.uses import Uses, numbered

SAMPLES, BATCH, EPOCHS, WORKERS = 96, 4, 3, 2
PATIENCE = 60.0  # seconds


@dataclass(frozen=True)
class Case:
    """One strategy. `make` gives what builds it for a session, for the time of one job."""

    make: Callable[[], AbstractContextManager[MakeStrategy]]
    options: Mapping[str, Any] = field(default_factory=dict)  # settings of the job
    is_free: bool = False  # workers take steps of their own: bits depend on timing
    meets_in: str = ", exchange 0"  # what labels have in which workers meet inside a loop
    codec: str = "identity"

    def hub(self, size: int, **named: Any) -> Hub:
        return Hub(size, codec=partial(codec_by_name, self.codec), codec_text=self.codec, **named)


@contextmanager
def served(*, shares_memory: bool = True) -> Iterator[MakeStrategy]:
    with group_of(2) as group:
        clients: dict[int, ParameterClient] = {}

        def made(replica: Replica, config: JobConfig) -> Strategy:
            worker = replica.peers.worker
            if worker not in clients:
                clients[worker] = group.client(worker, shares_memory=shares_memory)
            return make_strategy(replica, config, clients[worker])

        yield made


SERVED = {"strategy": "parameter-server", "staleness_scaling": "none"}
FREE = {**SERVED, "consistency": "asynchronous"}
FAR = partial(served, shares_memory=False)  # servers are as on other machines
EXACT = "sparse:above=0"  # leaves out nothing but zeros; `test_served_codecs` is about what others leave out


STRATEGIES = {
    "all-reduce": Case(lambda: nullcontext(make_strategy)),
    "local steps": Case(
        lambda: nullcontext(lambda replica, _: LocalSteps(replica, Manners(every=5))), meets_in=", mean"
    ),  # an epoch has 12 steps, or 8
    "parameter server": Case(served, SERVED, meets_in=", votes"),
    "parameter server, free": Case(served, FREE, is_free=True, meets_in="meeting in loop"),
    "parameter server, bounded": Case(served, {**FREE, "staleness": "1"}, is_free=True, meets_in="meeting in loop"),
    "parameter server, codec": Case(FAR, SERVED, meets_in=", votes", codec=EXACT),
    "parameter server, free, codec": Case(FAR, FREE, is_free=True, meets_in="meeting in loop", codec=EXACT),
}


@pytest.fixture(autouse=True)
def offered(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Codecs of the tests."""
    folder = tmp_path_factory.mktemp("site")
    offer(folder, "shoal.codecs", **CODECS)
    monkeypatch.syspath_prepend(str(folder))


every_strategy = pytest.mark.parametrize("case", STRATEGIES.values(), ids=STRATEGIES)
in_step = {name: case for name, case in STRATEGIES.items() if not case.is_free}


def script(inside: Callable[[shoal.Run], None] = lambda _: None) -> Callable[[shoal.Run], dict[str, Any]]:
    """`inside` is called in every iteration, between backward and update."""

    def train(run: shoal.Run) -> dict[str, Any]:
        model = run.model(Uses(SAMPLES))
        counting = run.optimizer(torch.optim.SGD([model.uses], lr=1.0))
        training = run.optimizer(torch.optim.SGD([model.weight], lr=0.01, momentum=0.9))
        for index, x in run.batches(numbered(SAMPLES), batch_size=BATCH, epochs=EPOCHS):
            model(index, x).backward()
            inside(run)
            # The gradient of `uses` is -1 over the step's samples for each use: with that rate, SGD adds one.
            iteration = run._session.iteration
            assert iteration is not None
            counting.param_groups[0]["lr"] = float(iteration.step_samples)
            for optimizer in (counting, training):
                optimizer.step()
                optimizer.zero_grad()
            run.log(step=run.step)
        return {
            "uses": model.uses.detach().clone(),
            "weight": model.weight.detach().clone(),
            "seen": model.seen.detach().clone(),
            "step": run.step,
        }

    return train


def hub_of(case: Case, folder: Path, *, is_resumed: bool = False) -> Hub:
    store = LocalStore(folder)
    return case.hub(WORKERS, publisher=StorePublisher(store, keep=100), store=store, is_resumed=is_resumed)


def outcome(
    case: Case, hub: Hub, train: Callable[[shoal.Run], Any], crews: list[Crew] | None = None, **options: Any
) -> dict[int, Any]:
    """What `train` gives on each worker that comes to its end. The job's crew is put into `crews`."""
    with case.make() as make:
        if hub.is_resumed:
            options["resume"] = "an earlier run"
        crew = Crew(hub, train, make, **case.options, **options)
        if crews is not None:
            crews.append(crew)
        for worker in range(hub.size):
            crew.start(worker)
        return crew.wait()


def assert_agreed(results: dict[int, Any]) -> dict[str, Any]:
    assert results
    first, *others = results.values()
    for other in others:
        assert all(torch.equal(torch.as_tensor(first[name]), torch.as_tensor(other[name])) for name in first)
    return dict(first)


def assert_each_once(results: dict[int, Any]) -> dict[str, Any]:
    agreed = assert_agreed(results)
    assert (agreed["uses"] - EPOCHS).abs().max().item() < 1e-3, agreed["uses"]
    return agreed


def steps_told(hub: Hub, worker: int) -> list[int]:
    told = [event for event in hub.events if isinstance(event, StepsApplied) and event.worker == worker]
    return [row.step for event in told for row in event.rows if not row.is_outside]


def at_once(worker: int, step: int, action: Callable[[shoal.Run], None]) -> Callable[[shoal.Run], None]:
    """The action, in the first iteration of a worker that is at this step or later."""
    done: list[int] = []

    def inside(run: shoal.Run) -> None:
        if not done and run._session.peers.worker == worker and run.step >= step:
            done.append(run.step)
            action(run)

    return inside


@every_strategy
def test_each_sample_counts_once(case: Case) -> None:
    result = assert_each_once(outcome(case, case.hub(WORKERS), script()))
    assert not torch.equal(result["weight"], torch.ones(4))


@every_strategy
def test_a_meeting_that_breaks_is_made_up_for(case: Case) -> None:
    undisturbed = assert_each_once(outcome(case, case.hub(WORKERS), script()))
    broken: list[str] = []

    def breaks(worker: int, label: str) -> bool:
        is_due = worker == 1 and case.meets_in in label and len(broken) < 2 and label not in broken
        if is_due:
            broken.append(label)
        return is_due

    hub = case.hub(WORKERS, fault=breaks)
    result = assert_each_once(outcome(case, hub, script()))
    assert broken
    if not case.is_free:
        assert any(isinstance(event, StepVoided) for event in hub.events)
        # The record has each step once, also where steps before the broken meeting were void with it.
        assert steps_told(hub, 0) == steps_told(hub, 1) == list(range(1, result["step"] + 1))
        assert [event.epoch for event in hub.events if isinstance(event, EpochEnded)] == list(range(EPOCHS))
        assert all(torch.equal(result[name], undisturbed[name]) for name in ("uses", "weight"))


@every_strategy
@pytest.mark.parametrize("step", [6, *(pytest.param(step, marks=pytest.mark.long) for step in (1, 5, 10))])
def test_a_killed_worker_costs_no_sample(case: Case, step: int) -> None:
    def dies(_run: shoal.Run) -> None:
        raise Killed

    results = outcome(case, case.hub(3), script(at_once(1, step, dies)), resize="worker-batch")
    assert 1 not in results
    assert_each_once(results)


@every_strategy
def test_a_newcomer_is_let_in_where_workers_meet_and_trains(case: Case) -> None:
    hub = case.hub(WORKERS)
    crews: list[Crew] = []
    worked: list[int] = []

    def comes(_run: shoal.Run) -> None:
        crews[0].start(WORKERS)
        limit = time.monotonic() + PATIENCE
        while not hub.is_wished:
            assert time.monotonic() < limit, "the newcomer did not come to the loop"
            time.sleep(0.005)

    begins = at_once(0, 2, comes)

    def inside(run: shoal.Run) -> None:
        begins(run)
        if run._session.peers.worker == WORKERS:
            worked.append(run.step)

    results = outcome(case, hub, script(inside), crews, resize="worker-batch")
    assert set(results) == {0, 1, 2} and worked
    assert any(isinstance(event, StateCopied) and event.worker == WORKERS for event in hub.events)
    assert_each_once(results)


@every_strategy
def test_a_worker_hands_its_place_over_where_workers_meet(case: Case) -> None:
    hub = case.hub(WORKERS)

    def told(_run: shoal.Run) -> None:
        hub.leaving[1] = "its machine is taken away"

    results = outcome(case, hub, script(at_once(1, 4, told)), resize="worker-batch")
    assert set(results) == {0} and hub.left == {1}
    assert not any(isinstance(event, StepVoided) for event in hub.events)
    assert_each_once(results)


@every_strategy
def test_a_stop_ends_all_workers_at_the_same_step(case: Case) -> None:
    results = outcome(case, case.hub(WORKERS), script(at_once(1, 4, lambda run: run.stop("enough"))))
    agreed = assert_agreed(results)
    assert set(results) == {0, 1} and agreed["step"] >= 4
    assert agreed["uses"].sum().item() < SAMPLES * EPOCHS - 1
    used = agreed["step"] * BATCH * (1 if case.is_free else WORKERS)
    assert agreed["uses"].sum().item() == pytest.approx(used, abs=1e-2)


@pytest.mark.parametrize("case", in_step.values(), ids=in_step)  # those who run free leave a loop by run.stop
def test_a_loop_that_is_left_in_the_middle_leaves_equal_replicas(case: Case) -> None:
    def train(run: shoal.Run) -> dict[str, Any]:
        model = run.model(Uses(SAMPLES))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
        for index, x in run.batches(numbered(SAMPLES), batch_size=BATCH):
            model(index, x).backward()
            optimizer.step()
            optimizer.zero_grad()
            if run.step == 4:
                break
        run.mean(0.0)  # the next call of `run` settles the loop
        return {"weight": model.weight.detach().clone(), "step": run.step}

    assert assert_agreed(outcome(case, case.hub(WORKERS), train))["step"] == 5


@every_strategy
def test_a_job_goes_on_from_its_checkpoint(case: Case, tmp_path: Path) -> None:
    undisturbed = assert_each_once(outcome(case, case.hub(WORKERS), script()))

    def dies(run: shoal.Run) -> None:
        run._session.saver.wait()  # steps here are faster than any disk
        if run.step >= 14 and published(LocalStore(tmp_path)):
            raise Killed

    assert not outcome(case, hub_of(case, tmp_path), script(dies), checkpoint_every="4")
    steps = [listed.name for listed in published(LocalStore(tmp_path))]
    assert steps
    resumed = hub_of(case, tmp_path, is_resumed=True)
    result = assert_each_once(outcome(case, resumed, script(), checkpoint_every="never"))
    if not case.is_free:
        assert all(torch.equal(result[name], undisturbed[name]) for name in ("uses", "weight", "seen"))
