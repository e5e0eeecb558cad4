"""How tasks of Ray write a data set: each block as a Parquet file, on the node where it lies.

A module of its own because tasks import it by name, with Ray and without torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ray.data import Datasink
from ray.data.block import Block, BlockAccessor
from ray.data.datasource import WriteResult

from shoal.data.tables.part_writing import WrittenPart, together, write_part

if TYPE_CHECKING:
    from ray.data._internal.execution.interfaces import TaskContext


class RowsSink(Datasink[tuple[Any, ...]]):
    """Writes to `place`, and holds in `parts` what was written, once all of it is."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.parts: list[WrittenPart] = []

    def write(self, blocks: Iterable[Block], ctx: TaskContext) -> tuple[Any, ...]:
        """In a task. A task that Ray runs again has the same number and the same blocks, and so the same names."""
        written = []
        for number, block in enumerate(blocks):
            accessor = BlockAccessor.for_block(block)
            if accessor.num_rows():
                name = f"part-{ctx.task_idx:06}-{number:06}.parquet"
                written.append(write_part(self.place, name, accessor.to_arrow()))
        return tuple(together(written))

    def on_write_complete(self, write_result: WriteResult[tuple[Any, ...]]) -> None:
        """In the program that has the data set."""
        self.parts = [WrittenPart(*each) for each in write_result.write_returns]
