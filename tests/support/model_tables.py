"""Tables of tensors for tests of the parameter server: that of the language-model example, and small ones."""

from __future__ import annotations

from shoal.parameters.blocks.table_blocks import block_bytes_for, table_bytes
from shoal.values import Address, Server, ServerMap
from shoal.wire.tables import RuleSpec, TableSpec, TensorSpec


def table_of(tensors: list[TensorSpec]) -> TableSpec:
    rules = tuple(RuleSpec(name="SGD", groups=({}, {})) for _ in range(2))
    block_bytes = block_bytes_for(table_bytes(tensors))
    return TableSpec(kind="dense", tensors=tuple(tensors), rules=rules, block_bytes=block_bytes)


def language_model(width: int = 128, layers: int = 4, context: int = 128) -> TableSpec:
    """The parameters of `examples/gpt.py`: 0.84 million in fp32."""
    shapes: list[tuple[int, ...]] = [(256, width), (context, width)]
    for _ in range(layers):
        shapes += [(width,), (width,), (3 * width, width), (width, width), (width,), (width,)]
        shapes += [(4 * width, width), (4 * width,), (width, 4 * width), (width,)]
    shapes += [(width,), (width,)]
    return table_of([TensorSpec(name=str(number), shape=shape, dtype="float32") for number, shape in enumerate(shapes)])


def server(number: int) -> Server:
    return Server(number=number, address=Address("127.0.0.1", 4000 + number), host="here", process=100 + number)


def server_map(living: list[int], before: list[int], after: list[int], replicas: int = 1) -> ServerMap:
    return ServerMap(
        version=1,
        servers=tuple(server(number) for number in living),
        before=tuple(before),
        after=tuple(after),
        replicas=replicas,
    )
