"""Puts the parts of a worker together: the strategy that was chosen, the session, the run."""

from __future__ import annotations

from collections.abc import Callable

from shoal.checkpoint.stores.store import Store
from shoal.data.order import key_of
from shoal.job_config import JobConfig
from shoal.strategies.all_reduce import AllReduce, AllReduceConfig
from shoal.strategies.parameter_server import ParameterServer, ParameterServerConfig
from shoal.strategies.peers import Peers
from shoal.strategies.replica import Replica
from shoal.strategies.server_leases import LedgerTerms
from shoal.strategies.strategy import Strategy
from shoal.training import devices
from shoal.training.session import Session

MakeStrategy = Callable[[Replica, JobConfig], Strategy]


def start_session(
    peers: Peers, config: JobConfig, store: Store | None = None, make: MakeStrategy | None = None
) -> Session:
    """The session behind a `Run`. Generators start equal everywhere, so that models are built with the same weights.

    Checkpoints go to `store`; without one there are none. `make` builds the strategy; None: the one that is set.
    """
    replica = Replica(peers)
    session = Session(replica, (make or _strategy)(replica, config), config, store)
    devices.seed(session.device, key_of(config.seed))
    return session


def _strategy(replica: Replica, config: JobConfig) -> Strategy:
    peers = replica.peers
    if peers.servers is None:  # also of a script that runs alone, whatever it is set to
        return AllReduce(replica, AllReduceConfig(bucket_bytes=int(config.bucket_mb * 2**20)))
    settings = ParameterServerConfig(
        terms=LedgerTerms(config.is_synchronous, config.staleness_bound, config.staleness_scaling),
        noise=config.noise,
        normalize=config.normalize,
        seed=config.seed,
    )
    return ParameterServer(replica, peers.servers, settings)
