"""What a peer sends in place of a frame is an error that names the peer."""

from __future__ import annotations

import pytest
import torch

from shoal.codecs.identity import Identity
from shoal.collectives.threaded_group import ThreadedGroup
from shoal.errors import Refused, WireError
from shoal.transport.mesh.in_process import in_process_meshes
from shoal.wire.frames import HEADER_BYTES, FrameHeader, FrameKind, ReductionCode, pack
from support.collectives import PATIENCE

OF_ANOTHER_GENERATION = FrameHeader(
    kind=FrameKind.ALL_REDUCE,
    reduction=ReductionCode.SUM,
    codec=0,
    dtype=9,
    generation=7,
    sequence=0,
    transfer=0,
    elements=10,
    payload=40,
    label="sum",
)


@pytest.mark.parametrize(
    ("head", "kind", "words"),
    [
        (b"x" * HEADER_BYTES, WireError, "from rank 1: a frame starts with"),
        (pack(OF_ANOTHER_GENERATION), Refused, "from rank 1: a frame of generation 7"),
    ],
    ids=["no frame", "another generation"],
)
@pytest.mark.parametrize("schedule", ["ring", "tree"])
def test_a_frame_that_cannot_be_names_who_sent_it(
    head: bytes, kind: type[Exception], words: str, schedule: str
) -> None:
    ours, theirs = in_process_meshes(2)
    theirs.post(0, head)
    group = ThreadedGroup.over(ours, 1, schedule, Identity())
    try:
        with pytest.raises(kind, match=words):
            group.all_reduce(torch.ones(10), label="sum").wait(PATIENCE)
    finally:
        group.close()
        theirs.close()
