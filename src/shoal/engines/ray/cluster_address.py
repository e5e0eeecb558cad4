"""Which Ray cluster there is to use, from variables and from the file in which Ray notes the last one. Imports no Ray.

Whoever runs the cluster gets the script and the job's token. The file is in a folder that all users may write to, so it
counts only if it belongs to this user or to root. Not here: connecting to it (`room_keeper`).
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path

from shoal.engines.ray import texts
from shoal.environment import RAY_ADDRESS
from shoal.errors import UsageError
from shoal.files import open_plain
from shoal.values import Address

FOLDER = "RAY_TMPDIR"  # Ray's own
AUTO = "auto"
NOTE = "ray_current_cluster"  # in the folder `ray`
LONGEST_NOTE = 1024  # bytes
ANSWER_SECONDS = 5.0
PLACE = re.compile(r"(?:ray://)?(?P<host>[^\s/:\[\]]+|\[[0-9a-fA-F:.]+\]):(?P<port>[0-9]{1,5})")


def cluster_address(variables: Mapping[str, str]) -> str:
    """The address in the form that `ray.init` takes; empty if no cluster runs.

    Raises `UsageError` if the cluster in RAY_ADDRESS does not answer.
    """
    named = variables.get(RAY_ADDRESS, "")
    if named and named != AUTO:
        place = place_of(named)
        if place is None:
            raise UsageError(texts.bad_ray_address(named))
        if why := _why_silent(place):
            raise UsageError(texts.ray_unreachable(named, why))
        return named
    noted = _noted(variables)
    place = place_of(noted)
    if place is not None and not _why_silent(place):
        return noted
    if named == AUTO:
        raise UsageError(texts.NO_RAY_CLUSTER)
    return ""


def place_of(address: str) -> Address | None:
    """Host and port of a cluster's address; None if it is none."""
    match = PLACE.fullmatch(address)
    if match is None or not 0 < int(match["port"]) < 65536:
        return None
    return Address(match["host"].strip("[]"), int(match["port"]))


def _noted(variables: Mapping[str, str]) -> str:
    """The address in Ray's file; empty if there is none, or if another user could have written it."""
    top = variables.get(FOLDER) or variables.get("TMPDIR") or "/tmp"  # noqa: S108  as Ray has it
    folder = Path(top, "ray")
    note = folder / NOTE
    try:
        with open_plain(note) as file:
            found = (folder.lstat(), folder.stat(), note.lstat(), os.fstat(file.fileno()))  # links, and what they name
            data = file.read(LONGEST_NOTE + 1)
    except OSError:
        return ""
    if {one.st_uid for one in found} - {0, os.geteuid()} or len(data) > LONGEST_NOTE:
        return ""
    return data.decode("ascii", "replace").strip()


def _why_silent(place: Address) -> str:
    """Empty: something answers there."""
    try:
        socket.create_connection((place.host, place.port), ANSWER_SECONDS).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""
