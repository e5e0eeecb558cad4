"""What people see of a job: progress, notices, the summary at its end, its report. See `docs/packages/watch.md`."""

from shoal.watch.incident_words import closing_line
from shoal.watch.report.page import write_report
from shoal.watch.screen.display import Display, open_display

__all__ = ["Display", "closing_line", "open_display", "write_report"]
