"""What people see of a job: progress, notices, the summary at its end, its report. See `docs/packages/watch.md`."""

from shoal.watch.incident_words import closing_line
from shoal.watch.report.page import write_report
from shoal.watch.screen.display import Display, announce, open_display
from shoal.watch.screen.slow_work import told_if_slow

__all__ = ["Display", "announce", "closing_line", "open_display", "told_if_slow", "write_report"]
