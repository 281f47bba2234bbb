"""Which column is what: by name, never by position, in any case, with English and some German, French and vendor names.

A name is compared without spaces, punctuation and case ("Adj Close" = "adj_close" = "adjclose"; MetaTrader's "<OPEN>" is
"open"). Where several columns could play a role, the one whose name stands first in the role's list is taken.
"""

import re
from dataclasses import dataclass

from numba_rl.data.raw import PRICES, Source, choose_symbol

ROLES: dict[str, tuple[str, ...]] = {
    "time": (
        "timestamp", "timestamputc", "tsevent", "datetime", "datetimeutc", "opentime", "opentimeutc", "starttime", "begin", "ts", "t",
        "zeitstempel", "dateutc", "date", "time", "timeutc", "gmttime", "utctime", "localtime", "datum", "zeit", "unix", "unixtime",
        "unixtimestamp", "epoch", "index", "indexlevel0", "unnamed0", "",
    ),
    "open": ("open", "openprice", "o", "1open", "pxopen", "eröffnung", "eroeffnung", "eröffnungskurs", "erster", "ouverture"),
    "high": ("high", "highprice", "h", "2high", "pxhigh", "hoch", "höchst", "höchstkurs", "tageshoch", "haut", "max"),
    "low": ("low", "lowprice", "l", "3low", "pxlow", "tief", "tiefst", "tiefstkurs", "tagestief", "bas", "min"),
    "close": (
        "close", "closeprice", "c", "4close", "pxlast", "schluss", "schlusskurs", "schlußkurs", "letzter", "clôture", "cloture",
        "closelast", "last", "lastprice", "price",
    ),
    "adjusted": ("adjclose", "adjustedclose", "adjcloseprice", "closeadj", "closeadjusted", "5adjustedclose"),
    "volume": (
        "volume", "vol", "v", "5volume", "6volume", "volumen", "umsatz", "stück", "pxvolume", "basevolume", "realvolume", "tickvolume",
        "tickvol", "volumefrom",
    ),
    "symbol": ("symbol", "ticker", "rawsymbol", "instrument", "instrumentid", "isin", "contract", "pair", "sym"),
}  # fmt: skip
DATES = ("date", "datum")
CLOCKS = ("time", "zeit", "uhrzeit")
GERMAN = frozenset(
    ("datum", "zeit", "eröffnung", "eroeffnung", "hoch", "tief", "schluss", "schlusskurs", "schlußkurs", "volumen", "umsatz")
)


def plain(name: str) -> str:
    """A column name reduced to lower-case letters and digits."""
    return re.sub(r"[\W_]+", "", name.casefold())


@dataclass(frozen=True)
class Columns:
    """Position of each role among a file's columns."""

    names: tuple[str, ...]
    at: dict[str, int]  # role -> position; "clock" is a separate column with the time of day
    symbol: str | None = None  # from the header, where it names instruments

    @property
    def german(self) -> bool:
        """Whether the names are German, and a point may so separate thousands."""
        return any(plain(self.names[i]) in GERMAN for i in self.at.values())

    def name(self, role: str) -> str:
        """The file's own name for a role."""
        return self.names[self.at[role]]

    def describe(self) -> str:
        """``time <- Date, open <- Open, ...; ignored: ...``"""
        used = ", ".join(f"{role} <- {self.names[i] or '(unnamed)'}" for role, i in self.at.items())
        extra = [name for i, name in enumerate(self.names) if i not in self.at.values() and name]
        return used + (f"; ignored: {', '.join(dict.fromkeys(extra))}" if extra else "")


def find_roles(names: list[str]) -> dict[str, int]:
    """Role -> position for the names that are known. Of equal names the first counts as found, see ``find_columns``."""
    plain_names = [plain(name) for name in names]
    at = {}
    for role, known in ROLES.items():
        best = next((alias for alias in known if alias in plain_names), None)
        if best is not None:
            at[role] = plain_names.index(best)
    if "volume" not in at:  # "Volume BTC", "Volume (USD)": the first counts
        first = next((i for i, name in enumerate(plain_names) if name.startswith("volume")), None)
        if first is not None:
            at["volume"] = first
    day = next((i for i, name in enumerate(plain_names) if name in DATES), None)
    clock = next((i for i, name in enumerate(plain_names) if name in CLOCKS), None)
    if day is not None and clock is not None and at["time"] in (day, clock):
        at["time"], at["clock"] = day, clock
    return at


def has_bars(at: dict[str, int]) -> bool:
    """Whether the roles found make bars."""
    return all(role in at for role in ("time", *PRICES))


def find_columns(source: Source, names: list[str], where: str = "") -> Columns:
    """Columns of a file with one header line. Raises DataError where a needed one is missing or a name occurs twice.

    where: such as "line 1: ", for messages.
    """
    at = find_roles(names)
    lacking = [role for role in ("time", *PRICES) if role not in at]
    if lacking:
        shown = ", ".join(repr(name) for name in names[:12]) + (", ..." if len(names) > 12 else "")
        raise source.error(
            None, f"{where}no column for {', '.join(lacking)} among {shown}: name the columns timestamp, open, high, low, close and volume"
        )
    plain_names = [plain(name) for name in names]
    for role, i in at.items():
        if plain_names.count(plain_names[i]) > 1:
            raise source.error(None, f"{where}two columns are named {names[i]!r} (the {role}): rename or delete one")
    return Columns(tuple(names), at)


def find_columns_by_symbol(source: Source, fields: list[str], symbols: list[str], wanted: str | None) -> Columns:
    """Columns of a header with two levels, the field and the instrument of each column ("" for the time's)."""
    chosen = choose_symbol(source, list(dict.fromkeys(symbol for symbol in symbols if symbol)), wanted)
    mine = [i for i, symbol in enumerate(symbols) if symbol in (chosen, "")]
    inner = find_columns(source, [fields[i] for i in mine], "header: ")
    names = tuple(f"{field} {symbol}".strip() for field, symbol in zip(fields, symbols, strict=True))
    return Columns(names, {role: mine[i] for role, i in inner.at.items()}, chosen)
