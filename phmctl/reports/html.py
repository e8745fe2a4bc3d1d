"""Pieces of the page. All text is escaped here, and nowhere else is markup made of what others wrote."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Markup:
    """Text that is HTML already."""

    text: str

    def __str__(self) -> str:
        """Return the HTML."""
        return self.text


Part = str | Markup


def element(tag: str, *inner: Part, **attributes: str) -> Markup:
    """Return an element; strings in it are escaped. Attributes have Python's names: ``class_``, ``aria_label``."""
    named = "".join(f' {name.rstrip("_").replace("_", "-")}="{escape(value)}"' for name, value in attributes.items())
    return Markup(f"<{tag}{named}>{join(inner)}</{tag}>")


def join(parts: Iterable[Part]) -> Markup:
    """Return parts behind one another, strings escaped."""
    return Markup("".join(part.text if isinstance(part, Markup) else escape(part) for part in parts))


def table(
    caption: str,
    head: Sequence[str],
    rows: Iterable[Sequence[Part]],
    *,
    text: Sequence[int] = (0,),
    prose: bool = False,
) -> Markup:
    """Return a table that scrolls by itself where the page is narrow.

    Args:
        caption: above it.
        head: the headings.
        rows: the first cell of each is its heading.
        text: the columns that hold text, set from the left; the others are numbers.
        prose: whether these hold sentences, in columns of some width.
    """
    kinds = ["text" if index in text else "number" for index in range(len(head))]
    if prose:
        kinds = ["prose" if kind == "text" and index else kind for index, kind in enumerate(kinds)]
    cells = [element("th", name, scope="col", class_=kind) for name, kind in zip(head, kinds, strict=True)]
    body = [
        element(
            "tr",
            *(
                element("th", cell, scope="row") if index == 0 else element("td", cell, class_=kinds[index])
                for index, cell in enumerate(row)
            ),
        )
        for row in rows
    ]
    whole = element(
        "table", element("caption", caption), element("thead", element("tr", *cells)), element("tbody", *body)
    )
    return element("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)


def picture(svg: str, words: str, caption: str) -> Markup:
    """Return a picture with what it shows in words, for those who do not see it, and a caption for all."""
    image = element("div", Markup(svg), role="img", aria_label=words, class_="picture")
    return element("figure", image, element("figcaption", caption))


def plural(count: int, word: str) -> str:
    """Return ``1 run``, ``2 runs``."""
    return f"{count:,} {word}" + ("" if count == 1 else "s")


def listing(lines: Iterable[Part]) -> Markup:
    """Return a list of lines; nothing where there are none."""
    items = [element("li", line) for line in lines]
    return element("ul", *items) if items else Markup("")


def section(title: str, key: str, *parts: Part) -> Markup:
    """Return a section with its heading."""
    return element("section", element("h2", title, id=key), *parts)
