"""One HTML page about one or several runs that needs nothing else: styles, script and numbers are in it.

The page's security policy allows exactly its style sheet and its script, by their hashes, and no request at all: even
text that slipped through the escaping could not run. Not here: the sections (`sections`, `worker_section`) and
what is drawn (`charts`).
"""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from importlib import resources
from pathlib import Path

from shoal.errors import UsageError
from shoal.watch.record.goodput import Goodput
from shoal.watch.record.run_record import read_record
from shoal.watch.record.series import read_curves
from shoal.watch.report import sections
from shoal.watch.report.charts import ChartData, Reported, as_script_text, chart_data
from shoal.watch.report.incident_table import incidents
from shoal.watch.report.markup import Markup, join, readable, tag, trusted
from shoal.watch.report.server_section import servers
from shoal.watch.report.worker_section import breakdown, patterns

CONTENTS = (
    ("curves", "Curves"),
    ("speed-section", "Speed"),
    ("incidents", "What went wrong"),
    ("servers", "Servers"),
    ("time", "Time"),
    ("timeline", "Timeline"),
    ("checkpoints", "Checkpoints"),
    ("configuration", "Configuration"),
)


def write_report(run_dirs: Sequence[Path], target: Path, defaults: Mapping[str, object] | None = None) -> Path:
    """Write the page aside and rename it to `target`. `defaults` are the settings' own, to show what differs."""
    page = report_page(read_runs(run_dirs), defaults or {})
    aside = target.parent / f".{target.name}-{secrets.token_hex(8)}"
    try:
        with aside.open("x", encoding="utf-8") as file:
            file.write(page)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(target)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise UsageError(
            f"the report {target} cannot be written: {error.strerror}; name another file with --to"
        ) from None
    return target


def read_runs(run_dirs: Sequence[Path]) -> list[Reported]:
    """Read the runs. Runs of the same name are labelled with their paths."""
    names = [run_dir.resolve().name for run_dir in run_dirs]
    labels = [str(path) if names.count(name) > 1 else name for name, path in zip(names, run_dirs, strict=True)]
    return [_read_run(readable(label), run_dir) for label, run_dir in zip(labels, run_dirs, strict=True)]


def _read_run(label: str, run_dir: Path) -> Reported:
    record = read_record(run_dir)
    goodput = Goodput(record.story.course)
    curves = read_curves(run_dir, also=goodput.add if len(record.story.incidents) else None)
    return Reported(label, record, curves, goodput.cost())


def report_page(runs: Sequence[Reported], defaults: Mapping[str, object]) -> Markup:
    style, script = _asset("report.css"), _asset("report.js")
    title = runs[0].label if len(runs) == 1 else f"{len(runs)} runs"
    policy = f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data:; base-uri 'none'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="generator", content="shoal report"),
        tag("title", f"{title} - shoal"),
        tag("link", rel="icon", href="data:,"),
        tag("style", style),
    )
    data = chart_data(runs)
    body = tag(
        "body",
        _top(runs, title),
        tag("main", *_sections(runs, data, defaults), patterns()),
        _foot(runs),
        tag("script", as_script_text(data), type="application/json", id="shoal-data"),
        tag("script", script),
    )
    return join(trusted("<!doctype html>\n"), tag("html", head, body, lang="en"), "\n")


def _top(runs: Sequence[Reported], title: str) -> Markup:
    theme = tag("button", "Theme: system", type="button", id="theme")
    shown = [(name, text) for name, text in CONTENTS if name != "servers" or _have_servers(runs)]
    links = tag("nav", *(tag("a", text, href=f"#{name}") for name, text in shown), theme, aria_label="Contents")
    if len(runs) > 1:
        return tag("header", links, tag("h1", title), sections.compared(runs))
    record = runs[0].record
    began = f"started {sections.day(record.story.spans[0].start)}" if record.story.spans else ""
    line = tag("p", tag("code", sections.command(record)), tag("span", began), class_="script")
    return tag("header", links, tag("h1", title, " ", sections.badge(record.state)), line, sections.headline(runs[0]))


def _sections(runs: Sequence[Reported], data: ChartData, defaults: Mapping[str, object]) -> list[Markup]:
    *values, speed = (sections.chart_frame(chart) for chart in data.charts)
    script_needed = tag("noscript", tag("p", "The curves are drawn by the page's script, which is switched off."))
    return [
        sections.section(
            "curves",
            "Curves",
            _tools(has_marks=any(run.marks for run in data.runs)),
            script_needed,
            tag("div", *values, class_="charts"),
            sections.curve_notes(runs),
        ),
        sections.section("speed-section", "Speed", tag("div", speed, class_="charts")),
        sections.section(
            "incidents",
            "What went wrong, and what it cost",
            *_each(runs, lambda run, _: incidents(run.record, run.cost)),
        ),
        *_servers(runs),
        sections.section("time", "Time per worker", *_each(runs, lambda run, _: breakdown(run.record))),
        sections.section("timeline", "Timeline", *_each(runs, lambda run, name: sections.timeline(run.record, name))),
        sections.section("checkpoints", "Checkpoints", *_each(runs, lambda run, _: sections.checkpoints(run.record))),
        sections.section("configuration", "Configuration", sections.configuration(runs, defaults)),
    ]


def _have_servers(runs: Sequence[Reported]) -> bool:
    return any(run.record.story.board.servers.is_known for run in runs)


def _servers(runs: Sequence[Reported]) -> list[Markup]:
    if not _have_servers(runs):
        return []
    return [sections.section("servers", "Servers", *_each(runs, lambda run, _: servers(run.record)))]


def _tools(*, has_marks: bool) -> Markup:
    """How curves are drawn; the script listens to these."""
    over = [
        tag("label", tag("input", type="radio", name="x", value=value, checked=value == "step"), text)
        for value, text in (("step", "over steps"), ("time", "over time"))
    ]
    switches = [
        tag("label", tag("input", type="checkbox", id=value), text)
        for value, text in (("log", "logarithmic"), ("smooth", "smooth"))
    ]
    legend = tag("legend", "How curves are drawn", class_="hidden")
    marks = "Dotted lines: a fault (red), other members, or a resume. Shaded: no progress. " if has_marks else ""
    hint = tag("small", f"{marks}Arrow keys move along a curve.", class_="hint")
    return tag("fieldset", legend, *over, *switches, hint, class_="tools")


def _each(runs: Sequence[Reported], made: Callable[[Reported, str], Markup]) -> list[Markup]:
    """A part for every run, with the run's name as heading if there are several."""
    if len(runs) == 1:
        return [made(runs[0], "run-0")]
    found = []
    for number, run in enumerate(runs):
        heading = tag("summary", sections.swatch(number), run.label)
        found.append(tag("details", heading, made(run, f"run-{number}"), class_="run", open=number == 0))
    return found


def _foot(runs: Sequence[Reported]) -> Markup:
    where = _each(runs, lambda run, _: sections.files(run.record))
    return tag(
        "footer", *where, tag("p", f"Written {datetime.now():%Y-%m-%d %H:%M:%S} by shoal report.", class_="note")
    )


def _asset(name: str) -> Markup:
    return trusted(resources.files("shoal.watch.report").joinpath(name).read_text(encoding="utf-8"))


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
    return f"'sha256-{digest}'"
