"""`shoal checkpoints RUN`: lists a run's checkpoints, checks every byte of them, marks those to keep."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from shoal.checkpoint.published import catalogue
from shoal.checkpoint.published.catalogue import Damage
from shoal.checkpoint.published.manifest import Manifest, parse_name
from shoal.checkpoint.stores.store import Store
from shoal.cli import texts
from shoal.cli.options import Parser
from shoal.cli.records.run_store import chosen, run_store
from shoal.cli.terminal_tables import columns
from shoal.errors import CheckpointUnusable, UsageError, printable
from shoal.values import Cursor
from shoal.watch.wording import amount

HEADINGS = ("checkpoint", "step", "place", "age", "size", "workers", "marks", "why")
DESCRIPTION = """\
Lists the published checkpoints of RUN, the newest first. RUN is a run directory, the beginning of a name under runs/,
or `last`. Marked checkpoints are never removed to make room for newer ones."""


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint as `--json` shows it. Fields that only the manifest has are None if the manifest cannot be read."""

    name: str
    step: int
    generation: int
    kind: str | None = None
    epoch: int | None = None  # counts from 0
    position: int | None = None  # samples into the epoch
    written: float | None = None  # seconds since 1970
    size: int | None = None  # bytes
    workers: int | None = None  # how many wrote it
    marks: tuple[str, ...] = ()
    reason: str | None = None
    problems: tuple[str, ...] | None = None  # None: not verified


class Listing(msgspec.Struct, frozen=True):
    place: str
    checkpoints: tuple[Shown, ...]
    unpublished: tuple[str, ...]


def parser() -> Parser:
    made = Parser(prog="shoal checkpoints", description=DESCRIPTION, usage="shoal checkpoints [options] RUN")
    made.add_argument("run", metavar="RUN", help="run directory, name under runs/, or last")
    made.add_argument("--verify", action="store_true", help="read every byte; exit code 9 where one is damaged")
    made.add_argument(
        "--mark", metavar="NAME=LABEL", help="keep this checkpoint; a label that marks another one moves here"
    )
    made.add_argument("--unmark", metavar="LABEL", help="take a label away")
    made.add_argument("--json", action="store_true", help="as JSON")
    return made


def main(arguments: Sequence[str]) -> int:
    parsed = parser().parse_all(arguments)
    with run_store(parsed.run) as (_, store):
        if parsed.mark is not None:
            _mark(store, parsed.mark)
        if parsed.unmark is not None:
            _unmark(store, parsed.unmark)
        listing = look(store, verify=parsed.verify)
    if parsed.json:
        print(msgspec.json.format(msgspec.json.encode(listing), indent=1).decode())
    else:
        print("\n".join(map(printable, lines(listing, time.time()))))
    if parsed.verify:
        _complain(listing)
    return 0


def _mark(store: Store, text: str) -> None:
    name, equals, label = text.partition("=")
    if not equals:
        raise UsageError(texts.no_mark(text))
    catalogue.check_label(label)
    catalogue.set_mark(store, label, chosen(store, name))


def _unmark(store: Store, label: str) -> None:
    labels = tuple(catalogue.marks(store))
    if label not in labels:
        raise UsageError(texts.marks_nothing(label, labels))
    catalogue.remove_mark(store, label)


def look(store: Store, *, verify: bool) -> Listing:
    labels: dict[str, list[str]] = {}
    for label, name in catalogue.marks(store).items():
        labels.setdefault(name, []).append(label)
    found = [
        _shown(store, listed.name, tuple(labels.get(listed.name, ())), verify) for listed in catalogue.published(store)
    ]
    return Listing(printable(store.place), tuple(found), tuple(catalogue.unpublished(store)))


def _shown(store: Store, name: str, marks: tuple[str, ...], verify: bool) -> Shown:
    place = parse_name(name)
    assert place is not None, "the catalogue lists only checkpoints by their names"
    try:
        manifest = catalogue.load_manifest(store, name)
    except CheckpointUnusable as error:
        return Shown(name=name, step=place[0], generation=place[1], marks=marks, problems=(str(error),))
    problems = tuple(map(_said, catalogue.verify(store, manifest))) if verify else None
    return _described(manifest, marks, problems)


def _described(manifest: Manifest, marks: tuple[str, ...], problems: tuple[str, ...] | None) -> Shown:
    about = manifest.about
    return Shown(
        name=manifest.checkpoint,
        step=about.step,
        generation=about.generation.number,
        kind=about.kind,
        epoch=about.cursor.epoch,
        position=about.cursor.position,
        written=manifest.written,
        size=manifest.size,
        workers=len(manifest.files),
        marks=marks,
        reason=about.reason,
        problems=problems,
    )


def _said(problem: Damage) -> str:
    tensor = f"{problem.tensor} " if problem.tensor else ""
    return f"{problem.file}: {tensor}{problem.text}"


def lines(listing: Listing, now: float) -> list[str]:
    """The table, then damage, then folders that are not published."""
    if not listing.checkpoints:
        said = [f"no published checkpoint in {listing.place}"]
    else:
        said = columns([HEADINGS, *(_row(shown, now) for shown in listing.checkpoints)], right=(1, 4, 5))
    said += [f"damaged: {text}" for shown in listing.checkpoints for text in shown.problems or ()]
    if listing.unpublished:
        names = ", ".join(listing.unpublished)
        said.append(f"not published (being written, or left behind; a resumed job removes them): {names}")
    return said


def _row(shown: Shown, now: float) -> tuple[str, ...]:
    if shown.written is None or shown.size is None or shown.epoch is None:
        return (shown.name, str(shown.step), "", "", "", "", ", ".join(shown.marks), "damaged")
    place = "weights only" if shown.kind == "weights" else Cursor(shown.epoch, shown.position or 0).text
    checked = "" if shown.problems is None else "damaged; " if shown.problems else "whole; "
    return (
        shown.name,
        str(shown.step),
        place,
        _age(now - shown.written),
        amount(shown.size),
        str(shown.workers),
        ", ".join(shown.marks),
        f"{checked}{shown.reason}",
    )


def _age(seconds: float) -> str:
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def _complain(listing: Listing) -> None:
    damaged = [shown.name for shown in listing.checkpoints if shown.problems]
    if not damaged:
        return
    usable = next((shown.name for shown in listing.checkpoints if not shown.problems), None)
    raise CheckpointUnusable(texts.damaged(damaged, len(listing.checkpoints), listing.place, usable=usable))
