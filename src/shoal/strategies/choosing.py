"""Builds the strategy that a job is set to."""

from __future__ import annotations

from shoal.job_config import JobConfig
from shoal.parameters.client.parameter_client import ParameterClient
from shoal.strategies.all_reduce.all_reduce import AllReduce, AllReduceConfig
from shoal.strategies.parameter_server.parameter_server import ParameterServer, ParameterServerConfig
from shoal.strategies.parameter_server.server_leases import LedgerTerms
from shoal.strategies.replica.replica import Replica
from shoal.strategies.strategy import Strategy


def make_strategy(replica: Replica, config: JobConfig, servers: ParameterClient | None = None) -> Strategy:
    """`servers`: of the job. Without any it is all-reduce, also in a script that runs alone, whatever it is set to."""
    if servers is None:
        return AllReduce(replica, AllReduceConfig(bucket_bytes=int(config.bucket_mb * 2**20)))
    settings = ParameterServerConfig(
        manners=config.manners,
        terms=LedgerTerms(config.manners.is_free, config.staleness_bound, config.staleness_scaling),
        noise=config.noise,
        normalize=config.normalize,
        seed=config.seed,
    )
    return ParameterServer(replica, servers, settings)
