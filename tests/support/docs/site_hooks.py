"""Hooks of the site (`mkdocs.yml`): pages from outside `docs/`, and links that are right on GitHub and in the site.

On GitHub a page links to files by their place in the repository. Here `benchmarks/*.md`, CONTRIBUTING.md and
CHANGELOG.md become pages of the site, a file of code that some page links to becomes a page that shows it, and each
link is turned into one to that page. A link to anything else in the repository is a warning, which ends the build.
"""

from __future__ import annotations

import logging
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parents[3]
LOG = logging.getLogger("mkdocs.hooks.site")
# Where files of the repository are in the site, besides `docs/` itself.
MOVED = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LANGUAGES = {".py": "python", ".toml": "toml", ".c": "c", ".h": "c", ".md": "markdown", ".txt": "text"}
# The order in which people read; a guide that is not named comes after these.
GUIDES = (
    *("coming-from-ddp", "coming-from-lightning", "coming-from-accelerate"),
    *("two-machines", "checkpoints", "elastic", "servers", "data", "gpus"),
    *("notebooks", "reinforcement-learning", "two-models", "debugging-a-hang"),
)
# How much a page counts in the search: who pastes a message wants its entry before pages about how Shoal is built.
BOOSTS = {"troubleshooting/": 4, "packages/": 0.3, "benchmarks/": 0.3, "design": 0.3, "journal": 0.3, "changelog": 0.3}
LINK = re.compile(r"(?<!!)\]\((?P<target>[^()\s]+)\)")
FENCE = re.compile(r"^\s*(?P<ticks>`{3,})")


def on_config(config: Any) -> Any:
    guides = sorted((ROOT / "docs" / "guides").glob("*.md"), key=lambda page: (place(page.stem), page.stem))
    for entry in config.nav:
        if "Guides" in entry:
            entry["Guides"] = [f"guides/{page.name}" for page in guides]
    config.nav = [entry for entry in config.nav if entry != {"Guides": []}]
    return config


def place(guide: str) -> int:
    return GUIDES.index(guide) if guide in GUIDES else len(GUIDES)


def on_files(files: Files, *, config: Any) -> Files:
    outside = {path.relative_to(ROOT).as_posix(): "" for path in sorted((ROOT / "benchmarks").glob("*.md"))}
    for name in (*outside, "CONTRIBUTING.md", "CHANGELOG.md"):
        files.append(File.generated(config, MOVED.get(name, name), abs_src_path=str(ROOT / name)))
    shown = {
        target
        for file in files.documentation_pages()
        for target in targets(Path(str(file.abs_src_path)).read_text(encoding="utf-8"), repository_path(file.src_uri))
        if site_path(target).startswith("source/") and (ROOT / target).is_file()
    }
    for name in sorted(shown):
        text = (ROOT / name).read_text(encoding="utf-8")
        language = LANGUAGES.get(Path(name).suffix, "text")
        content = f"---\nsearch:\n  exclude: true\n---\n# `{name}`\n\n````{language}\n{text.rstrip()}\n````\n"
        files.append(File.generated(config, site_path(name), content=content, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    here = page.file.src_uri
    if here.startswith("source/"):
        return markdown
    boost = next((factor for start, factor in BOOSTS.items() if here.startswith(start)), 1)
    page.meta.setdefault("search", {"boost": boost})

    def moved(match: re.Match[str]) -> str:
        target, anchor = resolved(match["target"], repository_path(here))
        if target is None:
            return match[0]
        if (ROOT / target).is_dir():
            LOG.warning("%s links to the folder %s; link to a page or a file", here, target)
        there = posixpath.relpath(site_path(target), posixpath.dirname(here) or ".")
        return f"]({there}{anchor})"

    return outside_fences(markdown, lambda line: LINK.sub(moved, line))


def repository_path(uri: str) -> str:
    """Where the page with this address in the site is in the repository."""
    if uri.startswith("benchmarks/"):
        return uri
    return next((name for name, moved in MOVED.items() if moved == uri and uri != "index.md"), f"docs/{uri}")


def site_path(name: str) -> str:
    """Where a file of the repository is in the site."""
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    if name in MOVED or (name.startswith("benchmarks/") and name.endswith(".md")):
        return MOVED.get(name, name)
    return f"source/{name}.md"


def resolved(link: str, page: str) -> tuple[str | None, str]:
    """The file of the repository that a link of a page names, and the anchor in it. No file: None."""
    path, sign, anchor = link.partition("#")
    if not path or re.match(r"[a-z]+:", path):
        return None, ""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), path)), sign + anchor


def targets(markdown: str, page: str) -> Iterator[str]:
    """Files of the repository that a page links to."""
    for match in LINK.finditer(without_fences(markdown)):
        target, _anchor = resolved(match["target"], page)
        if target is not None:
            yield target


def outside_fences(markdown: str, change: Callable[[str], str]) -> str:
    """Each line that is not in a code block is changed."""
    lines, closing = [], ""
    for line in markdown.split("\n"):
        fence = FENCE.match(line)
        if closing:
            closing = "" if fence and line.strip() == closing else closing
            lines.append(line)
        elif fence:
            closing = fence["ticks"]
            lines.append(line)
        else:
            lines.append(change(line))
    return "\n".join(lines)


def without_fences(markdown: str) -> str:
    """The lines that are not in a code block."""
    kept: list[str] = []

    def keep(line: str) -> str:
        kept.append(line)
        return line

    outside_fences(markdown, keep)
    return "\n".join(kept)
