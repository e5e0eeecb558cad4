"""Every code block that users are shown runs, as `docs/contributing-docs.md` describes."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.docs.code_blocks import Block, WrongBlock, blocks_in, run_block, run_page

DOCS = Path(__file__).parents[2] / "docs"
IN_DETAIL = (
    *("carriers.md", "chaos.md", "checkpoints.md", "configuration.md", "elastic.md", "gpu.md", "metrics.md"),
    *("parameter-server.md", "report.md", "simulate.md", "torch-backend.md"),
)
IN_A_KERNEL = ("guides/notebooks.md",)  # cells of one notebook: `test_launch_notebook` runs those
PAGES = [
    "../README.md",
    "index.md",
    "tutorial.md",
    *sorted(f"guides/{page.name}" for page in (DOCS / "guides").glob("*.md")),
    *IN_DETAIL,
    *sorted(f"engines/{page.name}" for page in (DOCS / "engines").glob("*.md")),
]


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", [name for name in PAGES if name not in IN_A_KERNEL])
def test_blocks_run(name: str, tmp_path: Path) -> None:
    run_page(DOCS / name, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", IN_A_KERNEL)
def test_blocks_that_are_no_cells_run_too(name: str, tmp_path: Path) -> None:
    others = [block for block in blocks_in(DOCS / name) if block.title or block.language != "python"]
    assert any(block.language == "console" for block in others)
    for block in others:
        run_block(block, tmp_path)


@pytest.mark.parametrize("name", PAGES)
def test_blocks_are_written_as_agreed(name: str) -> None:
    for block in blocks_in(DOCS / name):
        assert block.language, f"{block.place}: a fence without a language; write `text`"
        assert block.language not in ("bash", "sh", "shell"), f"{block.place}: write `console`, with `$ `"


def page_with(folder: Path, text: str) -> Path:
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    return page


def test_titled_blocks_become_files_that_commands_use(tmp_path: Path) -> None:
    page = page_with(
        tmp_path,
        '```python title="add.py"\nprint(1 + 1)\n```\n\n<!-- output -->\n```console\n$ python \\\n    add.py\n2\n```\n',
    )
    run_page(page, tmp_path)
    assert (tmp_path / "add.py").read_text(encoding="utf-8") == "print(1 + 1)\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```console\n$ false\n```\n", "exit code 1 instead of 0"),
        ("<!-- exit: 3 -->\n```console\n$ true\n```\n", "exit code 0 instead of 3"),
        ("<!-- output -->\n```console\n$ echo one\ntwo\n```\n", "no line 'two'"),
        ("<!-- output: any numbers -->\n```console\n$ echo 12 steps\n7 miles\n```\n", "no line '7 miles'"),
        ("<!-- no-run -->\n```python\nprint()\n```\n", "say why"),
        ("<!-- no-run: no GPU -->\n```python\nprint(\n```\n", "page.md:2"),
        ("<!-- part of: gone.py -->\n```python\nprint()\n```\n", "titled gone.py"),
        ("```bash\ntrue\n```\n", "write `console`"),
        ("```python {.no-run}\nprint()\n```\n", "is not a language"),
    ],
)
def test_a_wrong_block_is_found(text: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(WrongBlock, match=complaint):
        run_page(page_with(tmp_path, text), tmp_path)


def test_output_may_differ_in_numbers_and_where_dots_stand(tmp_path: Path) -> None:
    page = page_with(
        tmp_path, "<!-- output: any numbers -->\n```console\n$ echo loss 0.25, all well\nloss 0.3, all …\n```\n"
    )
    run_page(page, tmp_path)


def test_a_block_runs_inside_what_is_around_it(tmp_path: Path) -> None:
    around = "around\nfor number in range(2):\n    # HERE\nassert found == [0, 1]\n"
    block = Block("page.md:1", "python", "", "found.append(number)\n", around.replace("for", "found = []\nfor", 1))
    run_block(block, tmp_path)
