"""Finds out what a file is, by its content and never by its suffix, unpacks it, and calls the reader for it."""

import gzip
import zlib
from pathlib import Path

import zstandard

from numba_rl.config import DataConfig
from numba_rl.data.raw import NoBars, RawTable
from numba_rl.data.read_arrow import MAGIC as ARROW_MAGIC
from numba_rl.data.read_arrow import read_arrow
from numba_rl.data.read_csv import read_csv
from numba_rl.data.read_dbn import MAGIC as DBN_MAGIC
from numba_rl.data.read_dbn import read_dbn
from numba_rl.errors import DataError

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
SKIPPABLE = tuple(bytes([0x50 + i, 0x2A, 0x4D, 0x18]) for i in range(16))  # zstd frames without data
UNSUPPORTED = {
    b"PK\x03\x04": "a ZIP archive or spreadsheet: unpack it, or save the sheet as CSV",
    b"BZh": "bzip2 data: unpack it",
    b"\xfd7zXZ": "xz data: unpack it",
    b"\x89HDF": "HDF5: save it as Parquet",
    b"\xd0\xcf\x11\xe0": "an old spreadsheet: save it as CSV",
    b"SQLite": "a database: save the bars as CSV or Parquet",
    b"%PDF": "a PDF",
    b"<!DOC": "a web page, not the file it should link to: download it again",
    b"<html": "a web page, not the file it should link to: download it again",
    b"{": "JSON: save it as CSV or Parquet",
    b"[": "JSON: save it as CSV or Parquet",
}


def read_table(path: Path, config: DataConfig) -> RawTable:
    """Rows of a market file. Raises DataError for what cannot be opened, unpacked or recognised."""
    if path.is_dir():
        raise NoBars("this is a directory", "give a CSV, Parquet, Feather or DBN file")
    try:
        packed = path.read_bytes()
    except FileNotFoundError:
        raise NoBars("no such file", "check the path") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}): check the path and its permissions") from None
    parts, packing = _unpack(packed, path)
    data = parts[0]
    if not data.strip():
        raise NoBars("the file is empty", "give a file with bars")
    if data.startswith(DBN_MAGIC) and data[3:4] < b" ":
        table = read_dbn(parts, str(path), config)
    elif len(parts) == 1 and data[:4] in ARROW_MAGIC:
        table = read_arrow(data, str(path), config)
    else:
        for magic, what in UNSUPPORTED.items():
            if data[:16].lstrip()[: len(magic)].lower() == magic.lower():
                raise DataError(f"{path}: is {what}")
        table = read_csv(b"".join(parts), str(path), config)
    if packing:
        table.read_as[0] = ("format", f"{table.read_as[0][1]}, {packing}")
    return table


def _unpack(data: bytes, path: Path) -> tuple[list[bytes], str]:
    """Unpacked contents and the packing's name. Several parts: DBN files packed one after the other."""
    try:
        if data.startswith(GZIP):
            return [gzip.decompress(data)], "gzip"
        if data.startswith((ZSTD, *SKIPPABLE)):
            return _unzstd(data), "zstd"
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        raise DataError(f"{path}: damaged or cut short ({error}): download or copy it again") from None
    return [data], ""


def _unzstd(data: bytes) -> list[bytes]:
    """Contents of all frames; a frame that begins with DBN metadata begins a new file."""
    parts: list[list[bytes]] = [[]]
    while data:
        frame = zstandard.ZstdDecompressor().decompressobj()
        content = frame.decompress(data)
        if not frame.eof:
            raise EOFError("the last zstd frame is not complete")
        if content.startswith(DBN_MAGIC) and parts[-1]:
            parts.append([])
        if content:
            parts[-1].append(content)
        data = frame.unused_data
    return [b"".join(part) for part in parts]
