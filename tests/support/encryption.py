"""Encryption where it would not be: between two ends of one machine."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from shoal.transport.connection import introduction
from shoal.transport.connection.endpoint import Endpoint, plain
from shoal.transport.connection.tls import TlsEndpoint


@contextmanager
def insisting_on_tls(insists: bool = True) -> Iterator[None]:
    """Connections that this process makes and takes meanwhile, as if their other ends were on other machines."""
    with patch.object(introduction, "insists_on_tls", lambda _family, _host: insists):
        yield


def through_tls(connector: socket.socket, listener: socket.socket) -> tuple[Endpoint, Endpoint]:
    """Both ends of a connection, encrypted from now on."""
    ends = TlsEndpoint(plain(connector), is_listener=False), TlsEndpoint(plain(listener), is_listener=True)
    other = threading.Thread(target=ends[1].shake_hands)
    other.start()
    assert ends[0].shake_hands()
    ends[0]._flush()  # its last message of TLS would leave with the first bytes that it sends
    other.join()
    return ends
