"""Files that are written whole or not at all."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def atomic_file(path: str | Path) -> Iterator[IO[bytes]]:
    """A binary file to write to, which becomes ``path`` whole or not at all (temporary file, fsync, rename, fsync of the directory)."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def atomic_write(path: str | Path, data: bytes | str) -> None:
    """Write ``data`` so that a kill at any moment leaves either the old file or the new one, whole."""
    with atomic_file(path) as stream:
        stream.write(data.encode() if isinstance(data, str) else data)
