"""Offers codecs of the tests to Shoal as an installed package would: by metadata in a folder of the Python path."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parents[1]
EXAMPLES = {"sparse": "support.sparse_codec:Sparse", "packed": "support.packed_codec:Packed"}


def offer(folder: Path, **codecs: str) -> str:
    """Make a folder that offers these codecs, `name="module:Class"`. What PYTHONPATH must have to see it.

    Without any, the examples of the tests.
    """
    metadata = folder / "codecs_of_tests-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: codecs-of-tests\nVersion: 1.0\n")
    lines = [f"{name} = {place}\n" for name, place in (codecs or EXAMPLES).items()]
    (metadata / "entry_points.txt").write_text("".join(["[shoal.codecs]\n", *lines]))
    return f"{folder}:{TESTS}"
