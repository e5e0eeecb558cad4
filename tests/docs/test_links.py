"""Links between pages and to files of the repository lead somewhere, on GitHub; the build checks them in the site."""

from __future__ import annotations

import posixpath
import re
from functools import cache

import pytest

from support.docs.site_hooks import LINK, ROOT, without_fences

PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md"))
)


def prose(page: str) -> str:
    """A page without its code blocks and code spans."""
    text = without_fences((ROOT / page).read_text(encoding="utf-8"))
    return re.sub(r"(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)", "code", text)


@cache
def anchors(page: str) -> frozenset[str]:
    """As GitHub makes them of headings."""
    text = (ROOT / page).read_text(encoding="utf-8")
    headings = re.findall(r"(?m)^#+ (.+)$", text)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    broken = []
    for match in LINK.finditer(prose(page)):
        path, _sign, anchor = match["target"].partition("#")
        if re.match(r"[a-z]+:", path):
            continue
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
        if not (ROOT / target).exists() or (anchor and target.endswith(".md") and anchor not in anchors(target)):
            broken.append(match["target"])
    assert not broken, f"{page} links to what is not there: {broken}"
