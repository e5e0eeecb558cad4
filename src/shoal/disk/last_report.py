"""Writing the report into the run directory, and opening it. A failure here does not change the job's outcome."""

from __future__ import annotations

import contextlib
import sys
import webbrowser
from pathlib import Path

from shoal.disk import texts
from shoal.job_config import JobConfig

FILE_NAME = "report.html"


def leave_report(run_dir: Path, *, open_it: bool) -> None:
    """Never raises; if the report cannot be made, one line on standard error says so."""
    target = run_dir / FILE_NAME
    try:
        from shoal.watch.report.page import write_report  # noqa: PLC0415  a failure to import it is told like any other

        write_report([run_dir], target, default_settings())
        if open_it and not webbrowser.open(target.resolve().as_uri()):
            _say(texts.no_browser(target))
    except KeyboardInterrupt:
        _say(texts.report_not_written(run_dir))
    except Exception as error:  # the job is over and has its own exit code
        _say(texts.report_not_made(target, error or repr(error), run_dir))


def default_settings() -> dict[str, object]:
    """Names as in `config.toml`."""
    return JobConfig().values()


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal is gone
        sys.stderr.write(f"shoal: {text}\n")
        sys.stderr.flush()
