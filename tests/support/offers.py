"""Offers codecs, strategies and engines of the tests as an installed package would: by metadata on the Python path."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parents[1]
CODECS = {"sparse": "support.sparse_codec:Sparse", "packed": "support.packed_codec:Packed"}  # the examples


def offer(folder: Path, group: str, **entries: str) -> str:
    """Make a folder that offers these in a group of entry points, such as `shoal.codecs`: `name="module:object"`.

    Underscores in names become hyphens. What PYTHONPATH must have to see the folder.
    """
    metadata = folder / "of_tests-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: of-tests\nVersion: 1.0\n")
    lines = [f"{name.replace('_', '-')} = {place}\n" for name, place in entries.items()]
    (metadata / "entry_points.txt").write_text("".join([f"[{group}]\n", *lines]))
    return f"{folder}:{TESTS}"
