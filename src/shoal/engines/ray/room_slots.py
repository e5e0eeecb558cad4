"""The places for agents in a Ray cluster: which to fill, under which name, and when to try again. Pure.

A slot is a bundle of a placement group: room for one worker. Ray finds the node for it, and another one if that node is
lost. So each agent that ends is followed by another one in the same slot, after a pause. A node's name is the beginning
of Ray's id of it; second and later agents there add a number, so that no name is used twice. Not here: Ray
(`room_keeper`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds before a slot is filled again
NAME_LETTERS = 8  # of Ray's id of a node


@dataclass
class _Slot:
    name: str = ""  # of the agent that runs there
    began: float = 0.0  # when that was started
    pause: float = 0.0  # before it is filled again; 0: it was never lost
    due: float | None = 0.0  # when to fill it; None: it is filled, or Ray is looking for a node


class RoomSlots:
    def __init__(self, slots: int) -> None:
        self._slots = [_Slot() for _ in range(slots)]
        self._named: Counter[str] = Counter()  # agents by node id

    def due(self, now: float) -> list[int]:
        """The slots to fill now."""
        found = [number for number, slot in enumerate(self._slots) if slot.due is not None and slot.due <= now]
        for number in found:
            self._slots[number].due = None
        return found

    @property
    def next_due(self) -> float | None:
        return min((slot.due for slot in self._slots if slot.due is not None), default=None)

    def placed(self, number: int, node_id: str, now: float) -> str:
        """Ray has found a node for a slot. Returns the name of the agent to start there."""
        slot, node = self._slots[number], node_id[:NAME_LETTERS]
        assert slot.due is None, f"slot {number} is not being filled"
        assert not slot.name, f"slot {number} is filled already"
        self._named[node] += 1
        slot.name = node if self._named[node] == 1 else f"{node}-{self._named[node]}"
        slot.began = now
        return slot.name

    def ended(self, number: int, now: float) -> str:
        """The agent of a slot has ended, or could not be started. Returns its name; empty: it had none yet."""
        slot = self._slots[number]
        assert slot.due is None, f"slot {number} is empty"
        has_lasted = bool(slot.name) and now - slot.began >= LONGEST_PAUSE
        slot.pause = FIRST_PAUSE if has_lasted or not slot.pause else min(LONGEST_PAUSE, 2 * slot.pause)
        slot.due = now + slot.pause
        name, slot.name = slot.name, ""
        return name
