"""Progress drawn in place in a terminal: one line for the job, one per worker, printed lines above them.

Drawn from `show` and `print` only, without a thread of its own, so that nothing is ever drawn by two at once.
"""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.live import Live as RichLive
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from shoal.events import Event, StepsApplied
from shoal.watch import server_words
from shoal.watch.board import Board
from shoal.watch.screen.display import Display
from shoal.watch.screen.notices import LOUD, notices
from shoal.watch.screen.summary import COLUMNS, has_something, headline, rows
from shoal.watch.wording import progress_parts, rate

INTERVAL = 0.1  # seconds between two drawings, by the clock of the events
BAR_WIDTH = 24
SPARE_LINES = 4  # of the terminal's height that worker lines leave free


class Live(Display):
    def __init__(self, workers: int) -> None:
        self.board = Board()
        self._workers = workers
        self._console = Console()
        self._live = RichLive(console=self._console, auto_refresh=False, transient=True)
        self._drawn: float | None = None  # time of the last drawing
        self._live.start()

    def _is_due(self, event: Event, time: float) -> bool:
        """Whether to draw now. Steps wait for the interval; other events do not, as none may follow soon."""
        return self._drawn is None or not isinstance(event, StepsApplied) or time - self._drawn >= INTERVAL

    def show(self, event: Event, time: float) -> None:
        told = notices(self.board, event, time)
        self.board = self.board.apply(event, time)
        if told:
            style = "bold red" if isinstance(event, LOUD) else "bold"
            self._console.print(Text("\n".join(told), style=style), soft_wrap=True)
        # A plain torch script never joins and has no progress to show.
        if self.board.joined and self._is_due(event, time):
            self._drawn = time
            self._live.update(self._picture(), refresh=True)

    def print(self, *lines: str) -> None:
        # Colours of a script survive; what moves the cursor does not, since it would tear the progress lines.
        if lines:  # in one go: each print draws the progress anew
            self._console.print(Text("\n").join(Text.from_ansi(line) for line in lines), soft_wrap=True)

    def summarize(self, *more: str) -> None:
        if not has_something(self.board):
            return
        self._console.print(Text(headline(self.board), style="bold green"), soft_wrap=True)
        table = Table(*COLUMNS, show_edge=False, pad_edge=False, box=None, header_style="dim")
        for column in table.columns:
            column.justify = "right"
        for row in rows(self.board):
            table.add_row(*row)
        self._console.print(table)
        self.print(*more)

    def close(self) -> None:
        self._live.stop()

    def _picture(self) -> RenderableType:
        board = self.board
        if not board.workers:
            return Text(f"{len(board.joined)} of {self._workers} workers are here", style="dim")
        numbers = board.in_sight
        lines: list[RenderableType] = [self._job_line()]
        if serving := server_words.progress(board.servers):
            lines.append(Text(f"  {serving}", style="dim", no_wrap=True, overflow="ellipsis"))
        fitting = max(1, self._console.height - SPARE_LINES - len(lines) + 1)
        lines += [_worker_line(board, worker) for worker in numbers[:fitting]]
        if len(numbers) > fitting:
            lines.append(Text(f"  and {len(numbers) - fitting} more workers", style="dim"))
        return Group(*lines)

    def _job_line(self) -> RenderableType:
        grid = Table.grid(padding=(0, 1))
        total = self.board.loop.steps if self.board.loop else None
        bar = ProgressBar(total=total, completed=self.board.done, width=BAR_WIDTH)
        text = Text("  ".join(progress_parts(self.board)), no_wrap=True, overflow="ellipsis")
        if total:
            grid.add_row(bar, text)
        else:
            grid.add_row(text)
        return grid


def _worker_line(board: Board, worker: int) -> Text:
    state = board.workers.get(worker)
    name = f"worker {worker} on {board.places[worker]}" if _is_elsewhere(board, worker) else f"worker {worker}"
    if worker in board.gone:
        step = f" at step {state.step}" if state is not None else ""
        return Text(f"  {name}  gone{step}", style="dim strike", no_wrap=True, overflow="ellipsis")
    if state is None or (board.members and worker not in board.members):
        progress = "has come in" if worker in board.members else "is here and waits for its turn"
        return Text(f"  {name}  {progress}", style="dim", no_wrap=True, overflow="ellipsis")
    total = state.shares.total or 1.0
    shares = "  ".join(
        f"{name} {100 * part / total:.0f}%"
        for name, part in (
            ("compute", state.shares.compute),
            ("communication", state.shares.communication),
            ("waiting", state.shares.waiting),
            ("input", state.shares.input),
            ("checkpoint", state.shares.checkpoint),
        )
    )
    text = f"  {name}  step {state.step}  {rate(state.samples_per_second)}  {shares}"
    return Text(text, style="dim", no_wrap=True, overflow="ellipsis")


def _is_elsewhere(board: Board, worker: int) -> bool:
    """Whether to say where a worker is: only where workers are, or have just been, on several machines."""
    known = {board.places[each] for each in board.in_sight if each in board.places}
    return worker in board.places and len(known) > 1
