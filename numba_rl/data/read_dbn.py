"""Databento DBN (all versions; OHLCV schemas of a second, minute, hour or day) to a RawTable, with databento-dbn's decoder.

Prices are fixed-point with 9 decimals; the undefined price is missing (NaN). Stamps are ts_event, the start of the bar.
A file may hold several instruments (data.symbol picks one by symbol or id) and, when it was recorded live or joined from
several, other records (ignored) and bars of other intervals (left out, counted). One symbol that changes its id over
time, such as a continuous contract, is one instrument; the changes are reported.
"""

import databento_dbn as dbn
import numpy as np

from numba_rl.config import DataConfig
from numba_rl.data.calendar import DAY, HOUR, MINUTE, SECOND
from numba_rl.data.raw import PRICES, NoBars, RawTable, Source, choose_symbol, count, stamp_text

MAGIC = b"DBN"
CHUNK = 1 << 22  # bytes decoded at a time: bounds the Python objects alive
SCHEMAS = {
    dbn.RType.OHLCV_1S: "ohlcv-1s",
    dbn.RType.OHLCV_1M: "ohlcv-1m",
    dbn.RType.OHLCV_1H: "ohlcv-1h",
    dbn.RType.OHLCV_1D: "ohlcv-1d",
    dbn.RType.OHLCV_EOD: "ohlcv-eod",
}
INTERVALS = {"ohlcv-1s": SECOND, "ohlcv-1m": MINUTE, "ohlcv-1h": HOUR, "ohlcv-1d": DAY, "ohlcv-eod": DAY}  # ns
SERVICE = (dbn.ErrorMsg, dbn.ErrorMsgV1, dbn.SystemMsg, dbn.SystemMsgV1)
UNDEF_VOLUME = 2**64 - 1
# least bytes of a record by its type (of the oldest version, where they differ): the decoder aborts on shorter ones
SIZES = {
    int(rtype): record.size_hint
    for record, rtypes in (
        (dbn.OHLCVMsg, (*SCHEMAS, dbn.RType.OHLCV_DEPRECATED)),
        (dbn.TradeMsg, (dbn.RType.MBP_0,)),
        (dbn.MBP1Msg, (dbn.RType.MBP_1, dbn.RType.TBBO, dbn.RType.BBO_1S, dbn.RType.BBO_1M)),
        (dbn.CMBP1Msg, (dbn.RType.CMBP_1, dbn.RType.TCBBO, dbn.RType.CBBO_1S, dbn.RType.CBBO_1M)),
        (dbn.MBP10Msg, (dbn.RType.MBP_10,)),
        (dbn.MBOMsg, (dbn.RType.MBO,)),
        (dbn.StatusMsg, (dbn.RType.STATUS,)),
        (dbn.InstrumentDefMsgV1, (dbn.RType.INSTRUMENT_DEF,)),
        (dbn.ImbalanceMsg, (dbn.RType.IMBALANCE,)),
        (dbn.ErrorMsgV1, (dbn.RType.ERROR,)),
        (dbn.SymbolMappingMsgV1, (dbn.RType.SYMBOL_MAPPING,)),
        (dbn.SystemMsgV1, (dbn.RType.SYSTEM,)),
        (dbn.StatMsgV1, (dbn.RType.STATISTICS,)),
    )
    for rtype in rtypes
}
UNKNOWN = 1 << 16  # bytes: longer than any record
LEAST = np.array([SIZES.get(rtype, UNKNOWN) for rtype in range(256)])


def read_dbn(streams: list[bytes], path: str, config: DataConfig) -> RawTable:
    """Read unpacked DBN data, one or several files' worth. Raises DataError where they hold no bars of one instrument."""
    source = Source(path, "record")
    bars: dict[str, list[tuple[int, ...]]] = {}  # schema -> records, each with its number in the file first
    others: set[str] = set()
    mapping: dict[str, list] = {}  # id -> (symbol, first day, day after the last), the days None where they hold throughout
    schemas, versions, number = set(), set(), 0
    for data in streams:
        metadata, number = _decode(data, source, bars, others, mapping, number)
        versions.add(str(data[3]))
        if metadata.schema is not None:
            schemas.add(str(metadata.schema))
        for symbol, spans in metadata.mappings.items():
            for span in spans:
                mapping.setdefault(str(span["symbol"]), []).append((symbol, span["start_date"], span["end_date"]))
    if not bars:
        if others:
            raise NoBars(f"{', '.join(sorted(others))} records only", "request an ohlcv schema")
        raise NoBars("no records", "request a longer time range")
    schema = _choose_schema(bars, schemas, source, config)
    records = bars.pop(schema)
    notices = [f"{count(len(left), 'record')} of another interval ({name}) left out" for name, left in bars.items()]
    order = np.array([record[0] for record in records], np.int64)
    stamp = np.array([record[1] for record in records], np.uint64)
    bad = np.flatnonzero(stamp >= 2**63)
    if len(bad):
        raise source.error(int(order[bad[0]]), "the stamp is undefined: download the file again")
    stamp = stamp.astype(np.int64)
    ids = np.array([record[2] for record in records], np.int64)
    mine, symbol, more = _choose_instrument(stamp, ids, mapping, source, config)
    prices = {}
    for i, name in enumerate(PRICES, start=3):
        fixed = np.array([record[i] for record in records], np.int64)[mine]
        prices[name] = np.where(fixed == dbn.UNDEF_PRICE, np.nan, fixed / dbn.FIXED_PRICE_SCALE)
    traded = np.array([record[7] for record in records], np.uint64)[mine]
    return RawTable(
        source=source,
        timestamp=stamp[mine],
        prices=prices,
        volume=np.where(traded == UNDEF_VOLUME, np.nan, traded.astype(np.float64)),
        adjusted=None,
        rows=order[mine],
        interval_ns=INTERVALS[schema],
        read_as=[
            ("format", f"Databento DBN version {', '.join(sorted(versions))}, {schema}"),
            ("time", "ts_event, UTC"),
            ("symbol", symbol),
        ],
        notices=notices + more,
    )


def _decode(
    data: bytes, source: Source, bars: dict[str, list], others: set[str], mapping: dict[str, list], number: int
) -> tuple[dbn.Metadata, int]:
    """Append one file's records to ``bars``, ``others`` and ``mapping``; its metadata and the next record number."""
    _check_headers(data, source, number)
    decoder, metadata = dbn.DBNDecoder(), None
    try:
        for start in range(0, len(data), CHUNK):
            for record in decoder.write_and_decode(data[start : start + CHUNK]):
                if isinstance(record, dbn.Metadata):
                    metadata = record
                    continue
                if isinstance(record, dbn.OHLCVMsg):
                    row = (number, record.ts_event, record.instrument_id, record.open, record.high, record.low, record.close, record.volume)
                    bars.setdefault(SCHEMAS.get(record.rtype) or str(metadata.schema), []).append(row)
                elif isinstance(record, dbn.SymbolMappingMsg):
                    mapping.setdefault(str(record.instrument_id), []).append((record.stype_in_symbol, None, None))
                elif not isinstance(record, SERVICE):
                    others.add(type(record).__name__)
                number += 1
    except BaseException as error:
        if not isinstance(error, dbn.DBNError) and type(error).__name__ != "PanicException":  # of Rust; it is no Exception
            raise
        raise source.error(None, f"not readable as Databento DBN ({error}): download the file again") from None
    left = len(decoder.buffer())
    if metadata is None or left:
        raise source.error(number, f"the file is cut short here ({count(left or len(data), 'byte')} left over): download it again")
    return metadata, number


def _check_headers(data: bytes, source: Source, number: int) -> None:
    """Raise DataError for a record whose header cannot be right: of an unknown type, or shorter than its type.

    number: of the first record. Cost: a few passes over one byte in 56 where the records are alike.
    """
    view = np.frombuffer(data, np.uint8)
    at = 8 + int.from_bytes(data[4:8], "little")
    while at + 1 < len(view):
        size = int(view[at]) * 4
        alike = view[at : at + CHUNK : max(size, 1)]  # the same length byte over and over, as far as one length holds
        run = int(np.argmax(np.append(alike != view[at], True)))
        kinds = view[at + 1 : at + CHUNK : max(size, 1)][:run]
        least = LEAST[kinds]
        bad = np.flatnonzero(least > size)
        if len(bad):
            what = "of an unknown type" if least[bad[0]] == UNKNOWN else "too short for its type"
            raise source.error(number + int(bad[0]), f"the record is {what}: the file is damaged, download it again")
        at, number = at + run * size, number + run


def _choose_schema(bars: dict[str, list], schemas: set[str], source: Source, config: DataConfig) -> str:
    """The bars to read: of data.interval_seconds, else of the metadata's schema, else the only ones."""
    candidates = sorted(schemas & set(bars)) or sorted(bars)
    if config.interval_seconds is not None:
        candidates = [name for name in bars if INTERVALS[name] == round(config.interval_seconds * SECOND)] or candidates
    if len(candidates) > 1:
        raise source.error(None, f"holds bars of several intervals ({', '.join(candidates)}): pick one with data.interval_seconds")
    return candidates[0]


def _choose_instrument(
    stamp: np.ndarray, ids: np.ndarray, mapping: dict[str, list], source: Source, config: DataConfig
) -> tuple[np.ndarray, str, list[str]]:
    """Mask (bool [N]) of the chosen instrument's records, its name, and notices. stamp, ids: int64 [N]."""
    names = np.empty(len(ids), object)
    days = stamp.astype("datetime64[ns]")
    for number in np.unique(ids):
        at = ids == number
        names[at] = str(number)
        spans = mapping.get(str(number), ())
        alone = len({symbol for symbol, _, _ in spans}) == 1  # dates only matter where an id served several symbols
        for symbol, start, end in spans:
            names[at if alone or start is None else at & (days >= np.datetime64(start)) & (days < np.datetime64(end))] = symbol
    found = list(dict.fromkeys(names.tolist()))
    wanted = config.symbol
    if wanted is not None and wanted.isdigit() and wanted not in found and int(wanted) in ids:
        mine, chosen = ids == int(wanted), str(names[ids == int(wanted)][0])
    else:
        chosen = choose_symbol(source, found, wanted)
        mine = names == chosen
    held = np.unique(ids[mine])
    if len(held) == 1:
        return mine, chosen if chosen == str(held[0]) else f"{chosen} (id {held[0]})", []
    order = np.flatnonzero(mine)[np.argsort(stamp[mine], kind="stable")]
    changes = order[1:][np.diff(ids[order]) != 0]
    notice = (
        f"{chosen} changes its instrument id {count(len(changes), 'time')} (first on {stamp_text(stamp[changes[0]])}): "
        "prices may jump where contracts roll"
    )
    return mine, chosen, [notice]
