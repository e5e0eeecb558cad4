"""What is new to the user in a provider's words about a node that is not there. Pure.

A node's connection often closes before its provider can say why, and a provider that tries again and again says the
same each time. Not here: the words (`texts`), and what the user hears when a node is lost (`node_engine`).
"""

from __future__ import annotations

from shoal.engines import texts
from shoal.engines.nodes.provider import NodeGone

MOST_TOLD = 10  # different texts about one node until it comes back; what a cluster says may contain numbers


class NodeWords:
    def __init__(self) -> None:
        self._unexplained: set[str] = set()  # nodes that were lost, while the provider has not said why
        self._refused: set[str] = set()  # nodes whose agent was sent away: that it ended is no news
        self._told: dict[str, set[str]] = {}  # by node: what was said since it was there last

    @property
    def is_awaited(self) -> bool:
        """Whether a node was lost and its provider may still say why."""
        return bool(self._unexplained)

    def came(self, node: str) -> None:
        self._forget(node)
        self._told.pop(node, None)

    def lost(self, node: str) -> None:
        """The node is gone, and nobody has said why."""
        self._unexplained.add(node)

    def refused(self, node: str) -> None:
        self._refused.add(node)

    def news(self, gone: NodeGone) -> str:
        """What the user should hear of a node that is not there; empty: nothing new."""
        was_lost, was_refused = gone.node in self._unexplained, gone.node in self._refused
        self._forget(gone.node)
        if was_refused or (was_lost and gone.lost == texts.AGENT_ENDED):
            return ""
        text = texts.node_gone(gone.node, gone.lost or gone.reason) if was_lost else gone.reason
        told = self._told.setdefault(gone.node, set())
        if text in told or len(told) >= MOST_TOLD:
            return ""
        told.add(text)
        return text

    def _forget(self, node: str) -> None:
        self._unexplained.discard(node)
        self._refused.discard(node)
