"""`--on dask`: the workers of the Dask cluster that this program is a client of, or that Dask's settings name."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from shoal.engines import texts
from shoal.engines.dask.dask_nodes import DaskWorker, workers_in
from shoal.engines.dask.dask_provider import DaskProvider
from shoal.engines.engine import Engine
from shoal.errors import UsageError, printable
from shoal.job_config import JobConfig
from shoal.launching.elsewhere.gathering import Elsewhere, Folder, Nodes, gathered, with_reachable_address
from shoal.values import Address
from shoal.watch.screen.slow_work import told_if_slow

FREE_SECONDS = 10.0  # that busy workers of Dask are waited for: they tell about once a second what they do
LOOK_SECONDS = 0.25


def chosen(config: JobConfig, folder: Folder) -> Elsewhere:
    with contextlib.closing(_Connection()) as connection:
        hosts = [worker.host for worker in _free_workers(connection.client, config) if worker.host]

    def open_engine(bound: Address) -> Engine:
        connection = _Connection()
        try:
            free = _free_workers(connection.client, config)
        except BaseException:
            connection.close()
            raise
        provider = DaskProvider(connection.client, free, is_own=connection.is_own)
        return gathered(provider, Nodes(config, bound, folder, fewest=config.min_workers))

    return Elsewhere(with_reachable_address(config, lambda: hosts), open_engine)


class _Connection:
    """The client that the program has, or one of its own."""

    def __init__(self) -> None:
        import dask
        from distributed import Client

        self.is_own = False
        with contextlib.suppress(ValueError):  # there is none
            self.client: Any = Client.current()
            if self.client.asynchronous:
                raise UsageError(texts.WAITING_CLIENT)
            return
        if not (address := dask.config.get("scheduler-address", None)):
            raise UsageError(texts.NO_DASK_CLIENT)
        try:
            with told_if_slow(texts.reaching_dask(address)):
                self.client = Client(address, set_as_default=False, name="shoal")
        except Exception as error:
            raise UsageError(texts.dask_unreachable(str(address), _first_line(error))) from None
        self.is_own = True

    def close(self) -> None:
        if self.is_own:
            self.client.close()


def _free_workers(client: Any, config: JobConfig) -> list[DaskWorker]:
    """Those with a free thread, as soon as the job's first workers fit on them. Raises `UsageError` if they do not."""
    needed = config.min_workers or config.workers
    limit = time.monotonic() + FREE_SECONDS
    with told_if_slow(texts.WAITING_FOR_DASK):
        while True:
            known = _known_workers(client)
            free = [worker for worker in known if not worker.is_busy]
            if _slots(known) < needed:
                raise UsageError(texts.dask_too_small(needed, _slots(known), len(known)))
            if _slots(free) >= needed:
                return free
            if time.monotonic() > limit:
                raise UsageError(texts.dask_busy(needed, _slots(free), len(known) - len(free)))
            time.sleep(LOOK_SECONDS)


def _known_workers(client: Any) -> tuple[DaskWorker, ...]:
    try:
        return workers_in(client.scheduler_info(n_workers=-1))
    except Exception as error:
        address = getattr(client.scheduler, "address", "its address")
        raise UsageError(texts.dask_unreachable(str(address), _first_line(error))) from None


def _slots(workers: list[DaskWorker] | tuple[DaskWorker, ...]) -> int:
    return sum(worker.slots for worker in workers)


def _first_line(error: Exception) -> str:
    return printable(f"{type(error).__name__}: {error}".partition("\n")[0])
