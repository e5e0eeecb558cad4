"""HTML as nested calls: every piece of text is escaped unless it is markup already. Pure."""

from __future__ import annotations

import html


class Markup(str):
    """Text that is HTML already; only `tag`, `join` and `trusted` make it."""

    __slots__ = ()


def trusted(text: str) -> Markup:
    """Take text as HTML: for our own files, never for anything that a job said."""
    return Markup(text)


def escaped(text: str) -> Markup:
    """Escape text from anywhere. Characters that UTF-8 cannot encode become question marks."""
    return Markup(html.escape(readable(text), quote=True))


def readable(text: str) -> str:
    """Readable text for a file name, which may hold bytes that are no text."""
    return text.encode("utf-8", "replace").decode("utf-8")


def join(*children: str) -> Markup:
    return Markup("".join(child if isinstance(child, Markup) else escaped(child) for child in children))


def tag(name: str, /, *children: str, **attributes: str | int | bool) -> Markup:
    """`class_` stands for class and `data_run` for data-run; True is an attribute without value, False none."""
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escaped(str(value))}"')
        for key, value in attributes.items()
        if value is not False
    )
    closing = "" if name in VOID else f"{join(*children)}</{name}>"
    return Markup(f"<{name}{written}>{closing}")


VOID = frozenset({"meta", "link", "input", "br"})


def table(headings: tuple[str, ...], rows: list[Markup], **attributes: str | int | bool) -> Markup:
    """Rows are `tr` elements. Wide tables scroll by themselves, also by keyboard, not the page, and say so."""
    head = tag("thead", tag("tr", *(tag("th", heading, scope="col") for heading in headings)))
    made = tag("table", head, tag("tbody", *rows), **attributes)
    label = attributes.get("aria_label", "table")
    hint = tag("p", "This table goes on to the right: scroll it sideways.", class_="sideways", hidden=True)
    return join(hint, tag("div", made, class_="scroll", tabindex=0, role="region", aria_label=label))
