"""Puts the parts of a worker together: the strategy that was chosen, the session, the run."""

from __future__ import annotations

from collections.abc import Callable

from shoal.checkpoint.stores.store import Store
from shoal.data.order import key_of
from shoal.job_config import JobConfig
from shoal.strategies.choosing import make_strategy
from shoal.strategies.peers.peers import Peers
from shoal.strategies.replica.replica import Replica
from shoal.strategies.strategy import Strategy
from shoal.training.model import devices
from shoal.training.session import Session

MakeStrategy = Callable[[Replica, JobConfig], Strategy]


def start_session(
    peers: Peers, config: JobConfig, store: Store | None = None, make: MakeStrategy = make_strategy
) -> Session:
    """The session behind a `Run`. Generators start equal everywhere, so that models are built with the same weights.

    Checkpoints go to `store`; without one there are none. `make` builds the strategy.
    """
    replica = Replica(peers)
    session = Session(replica, make(replica, config), config, store)
    devices.seed(session.device, key_of(config.seed))
    return session
