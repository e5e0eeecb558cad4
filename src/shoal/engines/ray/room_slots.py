"""The places for agents in a Ray cluster: which to fill, under which name, and when to try again. Pure.

A slot is a bundle of a placement group: room for one worker. Ray finds the node for it, and another one if that node is
lost. So each agent that ends is followed by another one in the same slot, after a pause. A node's name is the beginning
of Ray's id of it; second and later agents there add a number, so that no name is used twice. Not here: Ray
(`room_keeper`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from shoal.engines.retries import Retries

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds before a slot is filled again
NAME_LETTERS = 8  # of Ray's id of a node


@dataclass
class _Slot:
    name: str = ""  # of the agent that runs there
    began: float = 0.0  # when that was started
    is_empty: bool = True  # no agent runs there, and Ray is not looking for a node


class RoomSlots:
    def __init__(self, slots: int) -> None:
        self._slots = [_Slot() for _ in range(slots)]
        self._new = list(range(slots))  # numbers of slots that were never filled
        self._retries = Retries(FIRST_PAUSE, LONGEST_PAUSE)  # by a slot's number
        self._named: Counter[str] = Counter()  # agents by node id

    def due(self, now: float) -> list[int]:
        """The slots to fill now."""
        found = [*self._new, *map(int, self._retries.take_due(now))]
        self._new = []
        for number in found:
            self._slots[number].is_empty = False
        return found

    @property
    def next_due(self) -> float | None:
        return 0.0 if self._new else self._retries.next_due

    def placed(self, number: int, node_id: str, now: float) -> str:
        """Ray has found a node for a slot. Returns the name of the agent to start there."""
        slot, node = self._slots[number], node_id[:NAME_LETTERS]
        assert not slot.is_empty, f"slot {number} is not being filled"
        assert not slot.name, f"slot {number} is filled already"
        self._named[node] += 1
        slot.name = node if self._named[node] == 1 else f"{node}-{self._named[node]}"
        slot.began = now
        return slot.name

    def ended(self, number: int, now: float) -> str:
        """The agent of a slot has ended, or could not be started. Returns its name; empty: it had none yet."""
        slot = self._slots[number]
        assert not slot.is_empty, f"slot {number} is empty"
        name, self._slots[number] = slot.name, _Slot()
        self._retries.failed(str(number), now, lasted=now - slot.began if name else 0.0)
        return name
