"""What people see of a job: progress, notices, the summary at its end, its report. See `docs/packages/watch.md`."""

from shoal.watch.display import Display, open_display
from shoal.watch.report_page import write_report

__all__ = ["Display", "open_display", "write_report"]
