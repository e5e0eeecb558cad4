"""The hosts file of `--on ssh`: a table for each host, read and checked before anything is started. TOML.

    [big]                              # the node's name
    address = "me@10.0.0.7"            # what ssh is called with; default: the node's name
    slots = 4                          # workers that it takes; default: its GPUs, or cores if it has none
    python = "~/venv/bin/python"       # default: the path of the launcher's own Python
    folder = "/home/me/project"        # of the script; default: the path that it has on the launcher's machine
    shared = true                      # the folder is on a file system that both machines see; default: false

Not here: using the hosts (`ssh_provider`).
"""

from __future__ import annotations

import difflib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from shoal import files
from shoal.bounds import Name
from shoal.engines import texts
from shoal.errors import UsageError

MOST_HOSTS = 1000
MOST_SLOTS = 256  # of a host: as many as one machine starts and watches


class HostTable(msgspec.Struct, frozen=True, rename="kebab"):
    """A host as the file has it. Zero and empty: the default."""

    address: Name = ""
    slots: Annotated[int, Meta(ge=0, le=MOST_SLOTS)] = 0
    python: Name = ""
    folder: Name = ""
    shared: bool = False


@dataclass(frozen=True)
class Host:
    name: str
    address: str
    slots: int  # 0: the host says it
    python: str
    folder: str  # empty: as on the launcher's machine
    is_shared: bool


def read_hosts(path: Path) -> tuple[Host, ...]:
    """In the order of the file. Raises `UsageError`."""
    try:
        tables = files.read_toml(path)
    except FileNotFoundError:
        raise UsageError(texts.hosts_file_missing(path)) from None
    except OSError as error:
        raise UsageError(texts.hosts_file_unreadable(path, error.strerror or error)) from None
    except ValueError as error:
        raise UsageError(texts.hosts_file_is_no_toml(path, error)) from None
    if not tables or len(tables) > MOST_HOSTS:
        raise UsageError(texts.hosts_file_size(path, len(tables), MOST_HOSTS))
    return tuple(_host(name, table, path) for name, table in tables.items())


def _host(name: str, table: object, path: Path) -> Host:
    if not isinstance(table, dict):
        raise UsageError(texts.no_host_table(path, name))
    known = HostTable.__struct_encode_fields__
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            raise UsageError(texts.unknown_host_key(path, name, key, near[0] if near else "", known))
    try:
        given = msgspec.convert(table, HostTable)
    except msgspec.ValidationError as error:
        what, _, where = str(error).replace("`", "").partition(" - at $.")
        raise UsageError(texts.wrong_host_value(path, name, where, what)) from None
    address = given.address or name
    if not address or address.startswith("-") or any(letter.isspace() for letter in address):
        raise UsageError(texts.bad_host_address(path, name, address))
    return Host(name, address, given.slots, given.python or sys.executable, given.folder, given.shared)
