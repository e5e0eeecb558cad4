"""Puts the parts of a worker together: the strategy that was chosen, the session, the run."""

from __future__ import annotations

from shoal.checkpoint.store import Store
from shoal.data.order import key_of
from shoal.job_config import JobConfig
from shoal.strategies.all_reduce import AllReduce, AllReduceConfig
from shoal.strategies.peers import Peers
from shoal.training import devices
from shoal.training.session import Session


def start_session(peers: Peers, config: JobConfig, store: Store | None = None) -> Session:
    """The session behind a `Run`. Generators start equal everywhere, so that models are built with the same weights.

    Checkpoints go to `store`; without one there are none.
    """
    strategy = AllReduce(peers, AllReduceConfig(bucket_bytes=int(config.bucket_mb * 2**20)))
    session = Session(peers, strategy, config, store)
    devices.seed(session.device, key_of(config.seed))
    return session
