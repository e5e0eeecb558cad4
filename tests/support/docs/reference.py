"""Pages under `docs/reference/` that follow from the code.

python -m tests.support.docs.reference          says which pages differ from the code
python -m tests.support.docs.reference --write  writes them
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from .command_reference import commands_page, settings_page
from .python_reference import python_page

FOLDER = Path(__file__).parents[3] / "docs" / "reference"
PAGES: dict[str, Callable[[], str]] = {
    "run.md": python_page,
    "commands.md": commands_page,
    "settings.md": settings_page,
}


def outdated() -> dict[str, str]:
    """By name, the pages that are not what the code says, as they should be."""
    made = {name: make() for name, make in PAGES.items()}
    return {name: text for name, text in made.items() if not is_written(FOLDER / name, text)}


def is_written(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    pages = outdated()
    for name, text in pages.items():
        if "--write" in sys.argv:
            FOLDER.mkdir(exist_ok=True)
            (FOLDER / name).write_text(text, encoding="utf-8")
        sys.stdout.write(f"docs/reference/{name} {'written' if '--write' in sys.argv else 'differs from the code'}\n")
    sys.exit(1 if pages and "--write" not in sys.argv else 0)
