"""`--on ray`: room in a Ray cluster that runs, or in one that is started for the job on this machine."""

from __future__ import annotations

from shoal.engines.engine import Engine
from shoal.engines.ray import texts
from shoal.engines.ray.cluster_address import cluster_address, place_of
from shoal.engines.ray.held_room import HeldRoom
from shoal.engines.ray.ray_provider import RayProvider
from shoal.engines.ray.room_messages import RoomWish
from shoal.environment import inherited
from shoal.job_config import JobConfig
from shoal.launching.elsewhere.gathering import Elsewhere, Folder, Nodes, gathered, with_reachable_address
from shoal.settings.engines.ray_settings import RaySettings, ray_wish
from shoal.values import Address
from shoal.watch.screen.slow_work import told_if_slow


def chosen(config: JobConfig, folder: Folder) -> Elsewhere:
    cluster = cluster_address(inherited({}))
    wish = ray_wish(config.of(RaySettings).ray, threads=config.threads)
    room = RoomWish(
        cluster=cluster,
        bundle=wish.bundle,
        fewest=config.min_workers or config.workers,
        most=config.workers,
        wait=wish.wait,
    )

    def open_engine(bound: Address) -> Engine:
        return gathered(_reserved(room), Nodes(config, bound, folder, fewest=room.fewest))

    head = place_of(cluster)
    hosts = [] if head is None else [head.host]
    return Elsewhere(with_reachable_address(config, lambda: hosts), open_engine)


def _reserved(room: RoomWish) -> RayProvider:
    held = HeldRoom(room)
    try:
        with told_if_slow(texts.waiting_for_ray(texts.ray_room(room.fewest, room.bundle))):
            held.wait()
        return RayProvider(held, room.fewest)
    except BaseException:
        held.close()
        raise
