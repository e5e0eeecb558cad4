"""One HTML page about one or several runs that needs nothing else: styles, script and numbers are in it.

The page's security policy allows exactly its style sheet and its script, by their hashes, and no request at all: even
text that slipped through the escaping could not run. A live page loads itself again every few seconds, because
somebody writes it again. Not here: the sections (`sections` and others) and what is drawn (`charts`).
"""

from __future__ import annotations

import base64
import contextlib
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
from shoal.watch.report.setting_section import configuration, environment
from shoal.watch.report.value_table import values
from shoal.watch.report.worker_section import breakdown, patterns

SCRIPTS = ("axes.js", "chart.js", "controls.js")  # parts of one script, in this order
AXES = {"step": "over steps", "samples": "over samples", "epoch": "over epochs", "time": "over time"}
CONTENTS = (
    ("curves", "Curves"),
    ("values", "Values"),
    ("speed-section", "Speed"),
    ("use", "Processor and memory"),
    ("incidents", "What went wrong"),
    ("servers", "Servers"),
    ("time", "Time"),
    ("timeline", "Timeline"),
    ("checkpoints", "Checkpoints"),
    ("environment", "Environment"),
    ("configuration", "Configuration"),
)


def write_report(
    run_dirs: Sequence[Path],
    target: Path,
    defaults: Mapping[str, object] | None = None,
    *,
    refresh: float | None = None,
) -> Path:
    """Write the page aside and rename it to `target`. `defaults` are the settings' own, to show what differs.

    `refresh`: seconds after which the page loads itself again; None: never.
    """
    page = report_page(read_runs(run_dirs), defaults or {}, refresh=refresh)
    aside = target.parent / f".{target.name}-{secrets.token_hex(8)}"
    try:
        with aside.open("x", encoding="utf-8") as file:
            file.write(page)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(target)
    except OSError as error:
        raise UsageError(
            f"the report {target} cannot be written: {error.strerror}; name another file with --to"
        ) from None
    finally:
        with contextlib.suppress(OSError):  # nothing is left aside, also where Ctrl-C came in between
            aside.unlink(missing_ok=True)
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


def report_page(runs: Sequence[Reported], defaults: Mapping[str, object], *, refresh: float | None = None) -> Markup:
    style, script = _asset("report.css"), _asset(*SCRIPTS)
    title = runs[0].label if len(runs) == 1 else f"{len(runs)} runs"
    policy = f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data:; base-uri 'none'"
    seconds = False if refresh is None else f"{refresh:g}"
    again = tag("noscript", tag("meta", http_equiv="refresh", content=seconds)) if seconds else ""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="generator", content="shoal report"),
        tag("title", f"{title} - shoal"),
        tag("link", rel="icon", href="data:,"),
        again,
        tag("style", style),
    )
    data = chart_data(runs)
    body = tag(
        "body",
        _top(runs, title, data),
        tag("main", *_sections(runs, data, defaults), patterns()),
        _foot(runs, refresh),
        tag("script", as_script_text(data), type="application/json", id="shoal-data"),
        tag("script", script),
    )
    return join(trusted("<!doctype html>\n"), tag("html", head, body, lang="en", data_live=seconds), "\n")


def _top(runs: Sequence[Reported], title: str, data: ChartData) -> Markup:
    theme = tag("button", "Theme: system", type="button", id="theme", disabled=True)  # until a script listens
    is_there = {"servers": _have_servers(runs), "use": any(chart.section == "use" for chart in data.charts)}
    shown = [(name, text) for name, text in CONTENTS if is_there.get(name, True)]
    links = tag("nav", *(tag("a", text, href=f"#{name}") for name, text in shown), theme, aria_label="Contents")
    if len(runs) > 1:
        return tag("header", links, tag("h1", title), sections.compared(runs))
    record = runs[0].record
    began = f"started {sections.day(record.story.spans[0].start)}" if record.story.spans else ""
    line = tag("p", tag("code", sections.command(record)), tag("span", began), class_="script")
    return tag("header", links, tag("h1", title, " ", sections.badge(record.state)), line, sections.headline(runs[0]))


def _sections(runs: Sequence[Reported], data: ChartData, defaults: Mapping[str, object]) -> list[Markup]:
    script_needed = tag("noscript", tag("p", "The curves are drawn by the page's script, which is switched off."))
    return [
        sections.section(
            "curves",
            "Curves",
            _tools(data),
            script_needed,
            tag("div", *_charts(data, "curves"), class_="charts"),
            sections.curve_remarks(runs),
        ),
        sections.section("values", "Last and best values", values(runs)),
        sections.section("speed-section", "Speed", tag("div", *_charts(data, "speed"), class_="charts")),
        *_use(data),
        sections.section(
            "incidents",
            "What went wrong, and what it cost",
            *_each(runs, lambda run, _: incidents(run.record, run.cost)),
        ),
        *_servers(runs),
        sections.section("time", "Time per worker", *_each(runs, lambda run, _: breakdown(run.record))),
        sections.section("timeline", "Timeline", *_each(runs, lambda run, name: sections.timeline(run.record, name))),
        sections.section("checkpoints", "Checkpoints", *_each(runs, lambda run, _: sections.checkpoints(run.record))),
        sections.section("environment", "Environment", *_each(runs, lambda run, _: environment(run.record))),
        sections.section("configuration", "Configuration", configuration(runs, defaults)),
    ]


def _charts(data: ChartData, section: str) -> list[Markup]:
    return [sections.chart_frame(chart) for chart in data.charts if chart.section == section]


def _use(data: ChartData) -> list[Markup]:
    """Nothing for records of a time when workers did not measure it."""
    if not (charts := _charts(data, "use")):
        return []
    told = "Of the workers' own processes; processes that they start, such as those of a data loader, are not in it."
    drawn = tag("div", *charts, class_="charts pair")
    return [sections.section("use", "Processor and memory", drawn, tag("p", told, class_="note"))]


def _have_servers(runs: Sequence[Reported]) -> bool:
    return any(run.record.story.board.servers.is_known for run in runs)


def _servers(runs: Sequence[Reported]) -> list[Markup]:
    if not _have_servers(runs):
        return []
    return [sections.section("servers", "Servers", *_each(runs, lambda run, _: servers(run.record)))]


def _tools(data: ChartData) -> Markup:
    """How curves are drawn; the script listens to these."""
    over = [
        tag("label", tag("input", type="radio", name="x", value=name, checked=name == data.axes[0]), text)
        for name, text in AXES.items()
        if name in data.axes
    ]
    switches = [
        tag("label", tag("input", type="checkbox", id=value), text)
        for value, text in (("log", "logarithmic"), ("smooth", "smooth"))
    ]
    legend = tag("legend", "How curves are drawn", class_="hidden")
    has_marks = any(run.marks for run in data.runs)
    marks = "Dotted lines: a fault (red), other members, or a resume. Shaded: no progress. " if has_marks else ""
    hint = tag("small", f"{marks}Drag to zoom, double click to reset; arrow keys move along a curve.", class_="hint")
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


def _foot(runs: Sequence[Reported], refresh: float | None) -> Markup:
    where = _each(runs, lambda run, _: sections.files(run.record))
    live = "" if refresh is None else f" It is written again about every {refresh:.0f} s until the job ends."
    written = f"Written {datetime.now():%Y-%m-%d %H:%M:%S} by shoal report.{live}"
    return tag("footer", *where, tag("p", written, class_="note"))


def _asset(*names: str) -> Markup:
    folder = resources.files("shoal.watch.report")
    return trusted("".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names))


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
    return f"'sha256-{digest}'"
