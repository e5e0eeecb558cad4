"""A worker's ways to its job's parameter servers: the client of all of them, and the relay through the first one.

Workers that have servers connect only to them: the home server relays what workers say to each other, as long as that
server is in the map. Not here: generations (`cluster_peers`), what is pushed and pulled (`parameter_server`).
"""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING

from shoal.environment import parse_address
from shoal.errors import Aborted
from shoal.membership.client import CoordinatorClient
from shoal.settings.parameter_server_settings import ParameterServerSettings
from shoal.values import Generation, Server, ServerMap
from shoal.wire.derived_keys import space_key

if TYPE_CHECKING:
    from shoal.parameters.relay.relay_mesh import RelayMesh

HOME_SECONDS = 30.0  # to wait for a server that relays: the next one may have to be started
HOME_RETRY = 0.05  # seconds between two tries
SILENCE_FACTOR, SILENCE_SECONDS = 2.0, 2.0  # silence that is borne from a server: longer than its keeper bears it


class ServerWays:
    def __init__(self, coordinator: CoordinatorClient, token: str, worker: int) -> None:
        """Begins to connect. The job's token stays here: servers only know the space's key, derived from the token."""
        from shoal.parameters.client.parameter_client import (  # noqa: PLC0415  jobs without servers start faster
            ClientConfig,
            ParameterClient,
        )

        self._coordinator = coordinator
        self._space = coordinator.welcome.space
        self._key = space_key(token, self._space)
        self._lock = threading.Lock()
        self._relay: RelayMesh | None = None  # the newest
        self.client = ParameterClient(
            ClientConfig(
                keeper=parse_address(coordinator.welcome.servers, named="the address of the servers' keeper"),
                key=self._key,
                job=self._space,
                worker=worker,
                silence_limit=self._silence_limit,
                on_map=self._map_changed,
            )
        )

    @property
    def _silence_limit(self) -> float:
        """Seconds: longer than the servers' keeper waits, so that its new map comes first, if it comes."""
        limit = self._coordinator.settings.of(ParameterServerSettings).server_limit
        return SILENCE_FACTOR * limit + SILENCE_SECONDS

    def _map_changed(self, servers: ServerMap) -> None:
        """From the client's thread: the server that workers talk through may be gone."""
        with self._lock:
            relay = self._relay
        if relay is not None:
            relay.map_changed(servers)

    def relay(self, generation: Generation, rank: int) -> RelayMesh:
        """A relay to a generation's other workers. Raises Aborted where no server is there or the generation ended."""
        from shoal.parameters.relay.relay_mesh import RelayConfig, RelayMesh  # noqa: PLC0415  as above

        mesh = RelayMesh(
            RelayConfig(
                server=self._living_home(generation.number),
                job=self._space,
                key=self._key,
                generation=generation.number,
                workers=tuple(member.worker for member in generation.members),
                silence_limit=self._silence_limit,
            ),
            rank,
        )
        with self._lock:
            self._relay = mesh
        if (servers := self.client.server_map) is not None:
            mesh.map_changed(servers)  # the map may have come while this worker joined
        return mesh

    def _living_home(self, generation: int) -> Server:
        """The first server of the newest map, as soon as there is one that can be reached."""
        limit = time.monotonic() + HOME_SECONDS
        while True:
            home = self.client.await_map().home
            try:
                socket.create_connection((home.address.host, home.address.port), timeout=1.0).close()
                return home
            except OSError as error:
                if (news := self._coordinator.interruption(generation)) is not None:
                    raise Aborted(news) from None
                if time.monotonic() > limit:
                    reason = f"no server was reachable for {HOME_SECONDS:g} s: {error.strerror or error}"
                    raise Aborted(reason) from None
            time.sleep(HOME_RETRY)
