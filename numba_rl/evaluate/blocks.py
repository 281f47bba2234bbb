"""What the report's page is made of: sections with tables and pictures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from numba_rl.evaluate.formatting import NOT_AVAILABLE, show

Figures = Mapping[str, float | None]  # of metrics by key; None: n/a


@dataclass(frozen=True)
class Table:
    """Rows under a head; the first column names the row, the others are numbers already formatted."""

    head: Sequence[str]
    rows: Sequence[Sequence[str | Markup]]
    title: str = ""
    note: str = ""
    text: bool = False  # columns hold words rather than numbers
    scroll: bool = False  # long: shown in a box of its own


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it: ``Table`` objects and pictures (Markup) in order."""

    title: str
    blocks: Sequence[Table | Markup]
    text: str = ""
    folded: bool = False  # shown on demand


def signed(value: float | None, unit: str) -> str | Markup:
    """A number in green or red by its sign."""
    text = show(value, unit)
    if text == NOT_AVAILABLE or value == 0:
        return text
    return Markup('<span class="{}">{}</span>').format("good" if value > 0 else "bad", text)


def lines(first: str, last: str) -> Markup:
    """Two ends of a span, one under the other."""
    return Markup('<span class="span">{}<br>{}</span>').format(first, last)
