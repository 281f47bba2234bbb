"""Damaged files: whatever happens to their bytes, reading ends in sound bars or in one line that names the file."""

import random
from pathlib import Path

import numpy as np
import pytest

from numba_rl.config import DataConfig
from numba_rl.data.bars import read_bars
from numba_rl.errors import UserError

CASES = sorted(path for path in (Path(__file__).parents[1] / "cases").glob("E-*/*") if path.name != "expected.txt")
PIECES = [
    b",",
    b";",
    b"\n",
    b"\r",
    b'"',
    b"\x00",
    b"NaN",
    b"-",
    b"1e309",
    b"inf",
    b"9" * 30,
    b"\xff",
    b"Z",
    b" ",
    b"symbol",
    b"open",
    b".",
    b"",
]


def damage(data: bytes, rng: random.Random) -> bytes:
    """One or two bytes changed, pieces put in or over, ends cut, stretches lost."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 2)):
        at, what = rng.randrange(len(out) + 1), rng.random()
        if what < 0.3:
            out[at : at + 1] = bytes([rng.randrange(256)])
        elif what < 0.75:
            out[at : at + rng.choice([0, 1, 3, 8])] = rng.choice(PIECES)
        elif what < 0.85:
            del out[at:]
        else:
            del out[at : at + rng.randint(1, 30)]
    return bytes(out)


@pytest.mark.parametrize("case", CASES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_sound_bars_or_one_line(tmp_path, case):
    rng = random.Random(case.name)
    path = tmp_path / "damaged.bin"
    for _ in range(12):
        path.write_bytes(damage(case.read_bytes(), rng))
        try:
            bars = read_bars(path, DataConfig(symbol=rng.choice([None, "ZZQX"]), price_mode="arithmetic", max_missing=1.0))
        except UserError as error:
            assert "damaged.bin" in str(error) and "\n" not in str(error)
            continue
        assert (np.diff(bars.timestamp) > 0).all()
        assert np.isfinite(bars.prices).all()
        assert (bars.high >= bars.prices.max(axis=1)).all() and (bars.low <= bars.prices.min(axis=1)).all()
        assert bars.volume is None or (np.isfinite(bars.volume).all() and (bars.volume >= 0).all())
