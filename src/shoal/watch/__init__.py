"""What people see of a running job: progress, notices, the summary at the end. See `docs/packages/watch.md`."""

from shoal.watch.display import Display, open_display

__all__ = ["Display", "open_display"]
