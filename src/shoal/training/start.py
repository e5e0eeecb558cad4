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
from shoal.training.reporting.progress import Progress
from shoal.training.reporting.reporter import Reporter
from shoal.training.saving.saving import Saver
from shoal.training.session import Lasting, Session

MakeStrategy = Callable[[Replica, JobConfig], Strategy]


def start_session(
    peers: Peers,
    config: JobConfig,
    store: Store | None = None,
    make: MakeStrategy = make_strategy,
    *,
    lasting: Lasting | None = None,
) -> Session:
    """The session behind a `Run`. Generators start equal everywhere, so that models are built with the same weights.

    Checkpoints go to `store`; without one there are none. `make` builds the strategy. `lasting`: of this worker's
    session before, where its script starts again.
    """
    replica = Replica(peers)
    lasting = lasting or Lasting(Reporter(peers), Progress(peers), Saver(peers, config, store))
    session = Session(replica, make(replica, config), config, lasting)
    devices.seed(session.device, key_of(config.seed))
    return session
