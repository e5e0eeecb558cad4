"""What a job was started with: script, arguments, versions, machines, settings. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from shoal.events import JobStarted
from shoal.watch.record.run_record import RunRecord
from shoal.watch.report.charts import Reported
from shoal.watch.report.machine_section import machines
from shoal.watch.report.markup import Markup, join, table, tag

OWN = ("run-dir", "resume", "address")  # settings that always differ between jobs, so that a difference means nothing
SHORT_COMMIT = 12  # characters of a hash that are shown; the whole one is in the tooltip
CHANGED, DIFFERS = "not the default", "differs between runs"


def environment(record: RunRecord) -> Markup:
    """Script, arguments, versions and machines."""
    started = record.story.started
    rows: list[tuple[str, Markup]] = []
    if started is not None:
        rows += [("script", tag("code", started.script)), ("arguments", _arguments(started))]
        rows.append(("commit", _commit(started)))
    versions = record.story.machines.versions() if record.story.machines.workers else {}
    rows += [(name, tag("code", ", ".join(found))) for name, found in versions.items()]
    if not rows:
        return tag("p", "No start is recorded.", class_="note")
    shown = [tag("div", tag("dt", name), tag("dd", value)) for name, value in rows]
    return join(tag("dl", *shown, class_="files facts"), machines(record))


def _arguments(started: JobStarted) -> Markup:
    if not started.arguments:
        return tag("span", "none", class_="note")
    return join(*(tag("code", argument, class_="argument") for argument in started.arguments))


def _commit(started: JobStarted) -> Markup:
    if not started.commit:
        return tag("span", "not known: the record names no git repository", class_="note")
    state = ", with changes that are not committed" if started.is_dirty else ""
    return join(tag("code", started.commit[:SHORT_COMMIT], title=started.commit), state)


def told_apart(runs: Sequence[Mapping[str, object]], defaults: Mapping[str, object]) -> dict[str, str]:
    """By setting: what is worth knowing about it, and nothing for one that is as it always is."""
    marks = {}
    for name in dict.fromkeys(name for settings in runs for name in settings):
        values = [settings.get(name, "") for settings in runs]
        marks[name] = ""
        if name not in OWN and any(value != values[0] for value in values):
            marks[name] = DIFFERS
        elif name not in OWN and any(value != defaults.get(name, value) for value in values):
            marks[name] = CHANGED
    return marks


def configuration(runs: Sequence[Reported], defaults: Mapping[str, object]) -> Markup:
    """Settings that are not the default, or not the same in all runs; the others are folded."""
    marks = told_apart([run.record.settings for run in runs], defaults)
    if not marks:
        return tag("p", "The settings cannot be read.", class_="note")
    special = [name for name, mark in marks.items() if mark]
    rest = [name for name, mark in marks.items() if not mark]
    shown: list[Markup] = []
    if special:
        shown.append(_settings(runs, defaults, {name: marks[name] for name in special}))
    else:
        shown.append(tag("p", "Every setting has its default value.", class_="note"))
    if rest:
        count = "1 other setting" if len(rest) == 1 else f"{len(rest)} other settings"
        summary = tag("summary", f"{count}, with default values" if defaults else count)
        shown.append(tag("details", summary, _settings(runs, defaults, dict.fromkeys(rest, "")), class_="rest"))
    return join(*shown)


def _settings(runs: Sequence[Reported], defaults: Mapping[str, object], marks: Mapping[str, str]) -> Markup:
    """A row per setting."""
    rows = []
    for name, mark in marks.items():
        cells = [tag("td", tag("code", plain(run.record.settings.get(name, "")))) for run in runs]
        default = [tag("td", tag("code", plain(defaults[name])) if name in defaults else "")] if defaults else []
        rows.append(tag("tr", tag("th", name, scope="row"), *cells, *default, tag("td", mark)))
    columns = [run.label for run in runs] if len(runs) > 1 else ["value"]
    headings = ("setting", *columns, *(["default"] if defaults else []), "")
    return table(headings, rows, aria_label="configuration", class_="settings")


def plain(value: object) -> str:
    """A setting's value as in the file, but text without quotes."""
    return value if isinstance(value, str) else json.dumps(value, default=str)
