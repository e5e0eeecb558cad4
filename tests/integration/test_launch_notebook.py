"""`shoal.launch` in cells of a notebook, run by a real Jupyter kernel."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client import BlockingKernelClient, KernelManager
from jupyter_core.utils import ensure_event_loop

from support.launcher import leftovers

CELL_PATIENCE = 240.0  # seconds; generous, since the machine may be busy
GUIDE = Path(__file__).parents[2] / "docs/guides/notebooks.md"
TRAIN = """
import torch
import shoal

torch.set_num_threads(1)
samples = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 1))

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x):
        return self.layer(x)

def train(run, lr=0.1, epochs=2):
    model = run.model(Net())
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=lr))
    for x, y in run.batches(samples, batch_size=8, epochs=epochs):
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=loss)
    if run.is_first:
        print("trained")
"""


class Cells:
    """A kernel, and what its cells wrote."""

    def __init__(self, process: int, client: BlockingKernelClient) -> None:
        self.process = process
        self._client = client
        self.stdout = ""
        self.stderr = ""
        self.shown: list[dict[str, str]] = []  # by kind of content
        self.updates = 0  # of what is shown

    def run(self, code: str) -> str:
        """The text of the cell's value. A cell that raises fails the test."""
        before = len(self.shown)
        reply = self._client.execute_interactive(code, timeout=CELL_PATIENCE, output_hook=self._heard)
        assert reply["content"]["status"] == "ok", reply["content"]
        return "".join(content.get("text/plain", "") for content in self.shown[before:][-1:])

    def _heard(self, message: dict[str, Any]) -> None:
        content = message["content"]
        match message["msg_type"]:
            case "stream" if content["name"] == "stdout":
                self.stdout += content["text"]
            case "stream":
                self.stderr += content["text"]
            case "display_data" | "execute_result":
                self.shown.append(content["data"])
            case "update_display_data":
                self.shown.append(content["data"])
                self.updates += 1


@pytest.fixture
def cells(tmp_path: Path) -> Iterator[Cells]:
    (tmp_path / "runtime").mkdir()
    kernel = KernelManager()
    variables = {
        **os.environ, "XDG_RUNTIME_DIR": str(tmp_path / "runtime"), "IPYTHONDIR": str(tmp_path / "ipython"),
    }  # fmt: skip
    kernel.connection_file = str(tmp_path / "connection.json")
    kernel.start_kernel(cwd=str(tmp_path), env=variables)
    client = kernel.client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=CELL_PATIENCE)
        yield Cells(kernel.provisioner.pid, client)
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)
        ensure_event_loop().close()  # the one that both have used here
    assert leftovers(tmp_path) == []


@pytest.mark.long
@pytest.mark.timeout(300)
def test_cells_train_with_progress_and_read_the_result(cells: Cells, tmp_path: Path) -> None:
    cells.run(TRAIN)
    cells.run("result = shoal.launch(train, arguments={'lr': 0.2}, workers=2, run_dir='out')")
    drawn = [content for content in cells.shown if "step 8/8" in content["text/plain"]]
    assert drawn
    assert "<progress" in drawn[-1]["text/html"]
    assert cells.updates > 0
    assert "finished: 8 steps" in cells.stdout
    assert "[worker 0] trained" in cells.stdout
    assert cells.run("result.exit_code, result.error") == "(0, '')"
    assert cells.run("result.metrics['loss'].steps") == "[1, 2, 3, 4, 5, 6, 7, 8]"
    cells.run("result")
    assert "<table>" in cells.shown[-1]["text/html"]
    assert str(Path("out/report.html")) in cells.shown[-1]["text/html"]
    assert cells.run("result.report().exists()") == "True"
    assert cells.run("result.best_checkpoint") == "'out/checkpoints/step-00000008-g1'"
    assert not list((tmp_path / "runtime").iterdir())


@pytest.mark.long
@pytest.mark.timeout(300)
def test_interrupting_the_kernel_stops_the_job_and_the_notebook_goes_on(cells: Cells, tmp_path: Path) -> None:
    cells.run(TRAIN)

    def interrupt() -> None:
        metrics = tmp_path / "out/metrics.jsonl"
        limit = time.monotonic() + CELL_PATIENCE
        while time.monotonic() < limit and not (metrics.exists() and metrics.stat().st_size):
            time.sleep(0.05)
        os.killpg(cells.process, signal.SIGINT)  # as a notebook does it

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    cells.run("result = shoal.launch(train, arguments={'epochs': 1_000_000}, workers=2, run_dir='out')")
    interrupter.join()
    assert cells.run("result.exit_code") == "130"
    assert cells.run("len(result.metrics['loss'].steps) > 0") == "True"
    assert "interrupted by Ctrl-C" in cells.stderr
    assert cells.run("1 + 1") == "2"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_cells_of_the_guide_run_in_order(cells: Cells) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(blocks) > 5
    for block in blocks:
        cells.run(block)
    assert "1 ValueError: no data here" in cells.stdout
    assert "check() raised" in cells.stdout
