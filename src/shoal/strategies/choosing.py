"""Builds the strategy that a job is set to: one of Shoal's own, or one that an installed package offers.

Which ones there are, and what each says about itself without being loaded, is in `settings.kinds`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from typing import TYPE_CHECKING

from shoal.job_config import JobConfig
from shoal.settings.kinds import STRATEGIES
from shoal.strategies.replica.replica import Replica
from shoal.strategies.strategy import Strategy

if TYPE_CHECKING:  # jobs without servers do not load the client of servers, which takes a seventh of a second
    from shoal.parameters.client.parameter_client import ParameterClient

    Maker = Callable[[Replica, JobConfig, ParameterClient | None], Strategy]


def make_strategy(replica: Replica, config: JobConfig, servers: ParameterClient | None = None) -> Strategy:
    """`servers`: of the job, where it has any. A script that runs alone cannot choose a strategy that needs them."""
    make: Maker = pkgutil.resolve_name(STRATEGIES.named(config.strategy).maker)
    return make(replica, config, servers)
