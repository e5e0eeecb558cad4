"""When to announce that the job waits for workers. Pure."""

from __future__ import annotations

from shoal.membership.generations.forming import Wait

INTERVAL = 10.0  # seconds between two notices


class MissingNotice:
    """A job that has begun announces at once that it waits, a job that starts only after a while."""

    def __init__(self, *, now: float) -> None:
        self._said: str | None = None  # the last reason
        self._since = now  # when waiting was last announced, or nobody waited

    def is_due(self, wait: Wait, *, at_once: bool, now: float) -> bool:
        if wait.workers == 0 and not at_once:  # plain scripts never join: nobody waits for them
            self._since = now
            return False
        is_news = at_once and wait.reason not in ("", self._said)
        if is_news:
            self._said, self._since = wait.reason, now
            return True
        return bool(wait.reason) and self.again(now)

    def again(self, now: float) -> bool:
        if now - self._since < INTERVAL:
            return False
        self._since = now
        return True

    def over(self, now: float) -> None:
        self._said, self._since = None, now
