"""Everything that crosses an interface of this network namespace, written to a file. Needs root.

Run as a program: its arguments are the file and the interface; it says "ready", and ends at the end of its input.
"""

from __future__ import annotations

import socket
import struct
import sys
import threading
from collections import defaultdict
from pathlib import Path

ALL_PACKETS = 0x0003  # ETH_P_ALL
Flow = tuple[bytes, int, bytes, int]  # source and target, each with its port


def record(path: str, interface: str) -> None:
    with (
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PACKETS)) as tap,
        Path(path).open("wb") as file,
    ):
        tap.bind((interface, 0))
        tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
        tap.settimeout(0.1)
        over = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while not over.is_set():
            try:
                frame = tap.recv(1 << 17)
            except TimeoutError:
                continue
            file.write(struct.pack("!I", len(frame)) + frame)
            file.flush()


def streams(path: Path) -> dict[Flow, bytes]:
    """What each end of each connection said, put together from its packets."""
    data, place = path.read_bytes(), 0
    pieces: dict[Flow, dict[int, bytes]] = defaultdict(dict)
    while place + 4 <= len(data):
        (length,) = struct.unpack_from("!I", data, place)
        frame = data[place + 4 : place + 4 + length]
        place += 4 + length
        if len(frame) < 54 or frame[12:14] != b"\x08\x00" or frame[23] != socket.IPPROTO_TCP:
            continue
        start = 14 + 4 * (frame[14] & 15)
        total = struct.unpack_from("!H", frame, 16)[0] or len(frame) - 14  # 0: longer than 64 KiB
        source, target, sequence = struct.unpack_from("!HHI", frame, start)
        payload = frame[start + 4 * (frame[start + 12] >> 4) : 14 + total]
        if payload:
            known = pieces[frame[26:30], source, frame[30:34], target]
            known[sequence] = max(known.get(sequence, b""), payload, key=len)
    return {flow: _joined(found) for flow, found in pieces.items()}


def _joined(found: dict[int, bytes]) -> bytes:
    """Numbers wrap around; no test sends so much that it matters beyond the first one."""
    first = min(found)
    if max(found) - first > 1 << 31:  # they did
        found = {(sequence + (1 << 31)) % (1 << 32): payload for sequence, payload in found.items()}
        first = min(found)
    whole = bytearray()
    for sequence in sorted(found):
        at = sequence - first
        whole[at : at + len(found[sequence])] = found[sequence]
    return bytes(whole)


if __name__ == "__main__":
    record(*sys.argv[1:])
