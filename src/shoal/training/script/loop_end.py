"""The end of the last loop, as a place to go back to: all that the code after it may change, as it was there.

A checkpoint that is made after a loop holds it, since a resumed script runs that code again. A worker that goes back
because another was lost in that code uses it too. Parameters and buffers are the present ones. Not here: when all go
back (`membership.member.alignment`).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch

from shoal.checkpoint.state_tree import Tree
from shoal.values import Cursor


@dataclass(frozen=True)
class LoopEnd:
    loop: int  # number, in program order
    points: int  # meetings outside loops that were passed before the one at its end
    first_step: int  # applied steps when the loop began
    cursor: Cursor
    kept: dict[str, Any]  # states of kept objects
    groups: list[list[dict[str, Any]]]  # by optimizer and group: settings such as the learning rate
    results: int  # of collectives outside loops that were recorded by then
    calls: int  # of the script, that were kept by then
    models: tuple[str, ...]  # that had been handed over
    digest: int | None  # of their parameters; None where there was nobody to compare them with

    def as_tree(self) -> Tree:
        cursor = self.cursor
        return {
            "numbers": [
                self.loop,
                self.points,
                self.first_step,
                cursor.epoch,
                cursor.position,
                self.results,
                self.calls,
            ],
            "digest": self.digest,
            "kept": self.kept,
            "groups": self.groups,
            "models": list(self.models),
        }


def from_tree(tree: Tree) -> LoopEnd:
    loop, points, first_step, epoch, position, results, calls = tree["numbers"]
    return LoopEnd(
        loop=loop,
        points=points,
        first_step=first_step,
        cursor=Cursor(epoch=epoch, position=position),
        kept=tree["kept"],
        groups=tree["groups"],
        results=results,
        calls=calls,
        models=tuple(tree["models"]),
        digest=tree["digest"],
    )


def group_settings(optimizers: list[torch.optim.Optimizer]) -> list[list[dict[str, Any]]]:
    return [
        [{name: copy.deepcopy(value) for name, value in group.items() if name != "params"} for group in each]
        for each in (optimizer.param_groups for optimizer in optimizers)
    ]


def wound_back(tree: Tree, end: LoopEnd) -> Tree:
    """The state as a script finds it at the end of the loop: what came after, such as `scheduler.step()`, comes again.

    `handed` lists what the script had handed over by then; later models stay in the tree, for exports.
    """
    optimizers = list(tree["optimizers"])
    for number, settings in enumerate(end.groups):
        groups = list(optimizers[number]["groups"])
        groups[: len(settings)] = [{**group, **then} for group, then in zip(groups, settings, strict=False)]
        optimizers[number] = {**optimizers[number], "groups": groups}
    return {
        **tree,
        "results": tree["results"][: end.results],
        "kept": end.kept,
        "optimizers": optimizers,
        "handed": {"models": list(end.models), "groups": [len(groups) for groups in end.groups]},
    }


def without_later(tree: Tree) -> Tree:
    """The state without what the script handed over after that loop's end: the script will hand it over again."""
    tree = dict(tree)
    handed = tree.pop("handed", None)
    if handed is None:
        return tree
    for part in ("models", "gradients"):
        tree[part] = {name: tree[part][name] for name in handed["models"]}
    tree["optimizers"] = [
        _first_groups(optimizer, count) for optimizer, count in zip(tree["optimizers"], handed["groups"], strict=False)
    ]
    return tree


def _first_groups(optimizer: Tree, count: int) -> Tree:
    groups = optimizer["groups"][:count]
    names = {name for group in groups for name in group["params"]}
    state = {name: values for name, values in optimizer["state"].items() if name in names}
    return {**optimizer, "groups": groups, "state": state}
