"""Databento DBN: versions, packings, several instruments, and files that are cut or hold no bars."""

from datetime import date
from types import SimpleNamespace

import databento_dbn as dbn
import pytest
import zstandard

from numba_rl.config import DataConfig
from numba_rl.data.bars import read_bars
from numba_rl.errors import DataError

HOUR = 3_600_000_000_000
START = 1_775_566_800_000_000_000  # 2026-04-07 13:00 UTC
UNDEF = dbn.UNDEF_PRICE


def metadata(
    schema=dbn.Schema.OHLCV_1H, mappings=(("ZZQX", (("2026-04-07", "2026-04-08", "7001"),)),), version=3, stype_in=dbn.SType.RAW_SYMBOL
):
    """Encoded metadata."""
    spans = [
        SimpleNamespace(
            raw_symbol=symbol,
            intervals=[SimpleNamespace(start_date=date.fromisoformat(a), end_date=date.fromisoformat(b), symbol=i) for a, b, i in spans],
        )
        for symbol, spans in mappings
    ]
    return bytes(
        dbn.Metadata(
            dataset="XNAS.TEST", start=START, stype_in=stype_in, stype_out=dbn.SType.INSTRUMENT_ID, schema=schema,
            symbols=[symbol for symbol, _ in mappings], mappings=spans, version=version,
        )
    )  # fmt: skip


def bar(hour=0, close=1.5, instrument=7001, rtype=dbn.RType.OHLCV_1H, high=2.0):
    fixed = [round(price * 1e9) for price in (1.0, high, 0.5)]
    return bytes(dbn.OHLCVMsg(rtype, 1, instrument, START + hour * HOUR, *fixed, close if close == UNDEF else round(close * 1e9), 10))


@pytest.fixture
def read(tmp_path):
    def run(data, **settings):
        (tmp_path / "bars.dbn").write_bytes(data)
        return read_bars(tmp_path / "bars.dbn", DataConfig(**settings))

    return run


HEAD = metadata()
THREE = HEAD + bar(0) + bar(1, 1.25) + bar(2, 1.75)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_versions(read, version):
    bars = read(metadata(version=version) + bar(0) + bar(1, 1.25))
    assert bars.close.tolist() == [1.5, 1.25]
    assert bars.volume.tolist() == [10, 10]
    assert bars.timestamp.tolist() == [START, START + HOUR]
    assert bars.read_as[0] == ("format", f"Databento DBN version {version}, ohlcv-1h")
    assert ("symbol", "ZZQX (id 7001)") in bars.read_as


@pytest.mark.parametrize(
    ("rtype", "schema", "seconds"),
    [
        (dbn.RType.OHLCV_1S, dbn.Schema.OHLCV_1S, 1),
        (dbn.RType.OHLCV_1M, dbn.Schema.OHLCV_1M, 60),
        (dbn.RType.OHLCV_1D, dbn.Schema.OHLCV_1D, 86400),
    ],
)
def test_the_interval_is_the_schemas(read, rtype, schema, seconds):
    data = metadata(schema=schema) + bar(0, rtype=rtype) + bar(48, rtype=rtype)
    assert read(data).interval_ns == seconds * 1_000_000_000
    with pytest.raises(DataError, match="data.interval_seconds"):
        read(data, interval_seconds=7.0)


def test_zstd_frames(read):
    expected = read(THREE).digest()
    cut = len(HEAD) + 30  # inside a record
    for packed in (zstandard.compress(THREE), zstandard.compress(THREE[:cut]) + zstandard.compress(THREE[cut:])):
        assert read(packed).digest() == expected
    skippable = b"\x50\x2a\x4d\x18" + (3).to_bytes(4, "little") + b"abc"
    assert read(skippable + zstandard.compress(THREE)).digest() == expected


def test_files_joined_frame_by_frame(read):
    later = metadata(version=1) + bar(3, 1.6) + bar(4, 1.7)
    bars = read(zstandard.compress(THREE) + zstandard.compress(later))
    assert bars.close.tolist() == [1.5, 1.25, 1.75, 1.6, 1.7]
    assert bars.read_as[0][1].startswith("Databento DBN version 1, 3")


def test_the_first_format_of_version_1(read):
    old = metadata(version=1) + bar(0, rtype=dbn.RType.OHLCV_DEPRECATED) + bar(1, rtype=dbn.RType.OHLCV_DEPRECATED)
    bars = read(old)
    assert len(bars) == 2 and bars.interval_ns == HOUR


def test_undefined_prices_and_record_numbers(read):
    bars = read(HEAD + bar(0) + bar(1, UNDEF) + bar(2))
    assert len(bars) == 2 and bars.prices.max() == 2
    assert "1 row without a price dropped as missing bar (record 2)" in bars.notices
    with pytest.raises(DataError, match="record 3: high 0.25 is below low 0.5"):
        read(HEAD + bar(0) + bar(1) + bar(2, high=0.25))
    with pytest.raises(DataError, match="record 4: differs from record 1"):
        read(THREE + bar(0, 1.1))


def test_one_symbol_over_several_ids(read):
    rolls = (("ES.c.0", (("2026-04-07", "2026-04-08", "11"), ("2026-04-08", "2026-04-10", "12"))),)
    data = metadata(mappings=rolls, stype_in=dbn.SType.CONTINUOUS) + b"".join(
        bar(hour, instrument=11 + hour // 24) for hour in (0, 1, 24, 25)
    )
    bars = read(data)
    assert len(bars) == 4
    assert any("ES.c.0 changes its instrument id 1 time (first on 2026-04-08 13:00)" in text for text in bars.notices)
    assert len(read(data, symbol="12")) == 2


def test_an_id_that_served_two_symbols(read):
    reused = (("AA", (("2026-04-07", "2026-04-08", "11"),)), ("BB", (("2026-04-08", "2026-04-09", "11"),)))
    data = metadata(mappings=reused) + b"".join(bar(hour, instrument=11) for hour in (0, 1, 24))
    with pytest.raises(DataError, match=r"2 instruments \(AA, BB\)"):
        read(data)
    assert len(read(data, symbol="aa")) == 2
    assert len(read(data, symbol="BB")) == 1


def test_live_recordings_have_mappings_among_the_records(read):
    mapping = bytes(
        dbn.SymbolMappingMsg(1, 7002, START, dbn.SType.RAW_SYMBOL, "LIVE", dbn.SType.INSTRUMENT_ID, "7002", START, START + HOUR)
    )
    system = bytes(dbn.SystemMsg(START, "Heartbeat"))
    data = metadata(schema=None, mappings=()) + mapping + bar(0, instrument=7002) + system + bar(1, UNDEF, 7002) + bar(2, instrument=7002)
    bars = read(data)
    assert ("symbol", "LIVE (id 7002)") in bars.read_as
    assert "1 row without a price dropped as missing bar (record 4)" in bars.notices


def test_mixed_intervals_without_a_schema(read):
    data = metadata(schema=None) + bar(0) + bar(1) + bar(0, rtype=dbn.RType.OHLCV_1M)
    with pytest.raises(DataError, match="several intervals .*data.interval_seconds"):
        read(data)
    assert len(read(data, interval_seconds=3600.0)) == 2


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (HEAD, "no records: 0 bars found"),
        (THREE[:-7], "record 3: the file is cut short here"),
        (HEAD[:50], "cut short"),
        (b"DBN\x09" + HEAD[4:], "newer version"),
        (HEAD + b"\x00" * 56, "record 1: the record is too short"),
        (THREE + b"\x05" + bar(3)[1:], "record 4: the record is too short"),
        (THREE + b"\x0e\x77" + bar(3)[2:], "record 4: the record is of an unknown type"),
        (THREE + THREE, "record 4: the record is of an unknown type"),
        (zstandard.compress(THREE)[:-4], "cut short"),
    ],
)
def test_refused(read, data, says):
    with pytest.raises(DataError, match=says):
        read(data)


def test_records_that_are_no_bars(read):
    trade = bytes(dbn.TradeMsg(1, 7001, START, 10**9, 1, dbn.Action.TRADE, dbn.Side.ASK, 0, START))
    with pytest.raises(DataError, match="TradeMsg records only: 0 bars found"):
        read(metadata(schema=dbn.Schema.TRADES) + trade)
