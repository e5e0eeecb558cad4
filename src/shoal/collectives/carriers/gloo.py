"""gloo as a carrier: torch's CPU library, over TCP connections of its own.

torch's `abort` does not wake a gloo operation that waits for a peer, so this carrier shuts gloo's connections down:
both ends see that at once. gloo's connections carry no token: use it in a network that you trust.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import msgspec
import torch
from torch.distributed import ProcessGroupGloo
from torch.distributed import Work as TorchWork

from shoal.bounds import Name, Port
from shoal.collectives.carriers.carrier import CarrierFailed
from shoal.collectives.carriers.torch_carrier import FORM_SECONDS, MeetingPoint, TorchCarrier
from shoal.collectives.group import Reduction
from shoal.transport.memory.neighbours import Exchange

OPERATION_SECONDS = 86_400.0  # deaths are noticed from the mesh; slowness is no failure
TIME_IS_OVER = "Operation timed out!"  # how torch reports the end of a wait, not of an operation
THREADS = 1  # one operation at a time
_TYPES = (  # types that gloo adds as torch does
    *(torch.uint8, torch.int8, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
)

Address = tuple[str, int]

_making_devices = threading.Lock()  # one at a time, so that a new listening socket belongs to the new device


class GlooCarrier(TorchCarrier):
    name = "gloo"

    def __init__(self, exchange: Exchange, rank: int, size: int, host: str) -> None:
        """Called by all ranks. `host`: an address of this rank that the others can reach."""
        device, address = _listen(host)
        said = exchange(msgspec.msgpack.encode(address))
        self._addresses = {msgspec.msgpack.decode(data, type=tuple[Name, Port]) for data in said}
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # torch's types leave it out
        options._devices, options._threads = [device], THREADS
        options._timeout = timedelta(seconds=FORM_SECONDS)
        meeting = MeetingPoint(exchange, rank, host)
        try:
            backend = ProcessGroupGloo(meeting.store, rank, size, options)
        except RuntimeError as error:
            raise CarrierFailed(str(error)) from None
        exchange(b"")  # all have met: the meeting point may go
        backend._set_default_timeout(timedelta(seconds=OPERATION_SECONDS))
        super().__init__(backend, rank)

    def reduces(self, dtype: torch.dtype, reduction: Reduction) -> bool:  # noqa: ARG002  all of them
        return dtype in _TYPES

    def _is_done(self, work: TorchWork, seconds: float) -> bool:
        try:
            work.wait(timedelta(seconds=seconds))
        except RuntimeError as error:
            # `is_completed` would not help: it may have become true meanwhile, and for some works it never does.
            if str(error).startswith(TIME_IS_OVER):
                return False
            raise CarrierFailed(str(error)) from None
        return True

    def abort(self) -> None:
        for connection in _own_sockets():
            peer = _peer_of(connection)
            if peer is not None and not self._addresses.isdisjoint((connection.getsockname()[:2], peer)):
                with contextlib.suppress(OSError):  # closed already
                    connection.shutdown(socket.SHUT_RDWR)


def _listen(host: str) -> tuple[ProcessGroupGloo.Device, Address]:
    """A gloo device and the address it listens on. gloo does not tell: find the new listening socket."""
    with _making_devices:
        while True:
            before = _listening()
            device = ProcessGroupGloo.create_device(hostname=host)
            if len(new := _listening() - before) == 1:
                return device, new.pop()


def _listening() -> set[Address]:
    accepting = (socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    return {each.getsockname()[:2] for each in _own_sockets() if each.getsockopt(*accepting)}


def _own_sockets() -> Iterator[socket.socket]:
    """This process's internet sockets, one after the other, each through a duplicate that is closed again."""
    for path in Path("/proc/self/fd").iterdir():
        try:
            descriptor = os.dup(int(path.name))
        except OSError:
            continue  # closed meanwhile
        try:
            found = socket.socket(fileno=descriptor)
        except OSError:
            os.close(descriptor)  # no socket
            continue
        with found:
            if found.family in (socket.AF_INET, socket.AF_INET6):
                yield found


def _peer_of(connection: socket.socket) -> Address | None:
    try:
        host, port = connection.getpeername()[:2]
    except OSError:
        return None  # not connected; never shut down gloo's listening socket: gloo would end the process
    return host, port
