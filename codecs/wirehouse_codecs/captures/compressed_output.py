"""Writes files plain, gzip or zstd, depending on the suffix of their name. Equal content gives equal files."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, TypeVar, cast

import pyarrow as pa

PACKINGS: Final = ("", ".gz", ".zst")
T = TypeVar("T", bound=Callable[..., Any])


def endings(suffix: str, write: T) -> dict[str, T]:
    """A mapping from `suffix`, plain and with each suffix for compression, to `write`."""
    return {suffix + packing: write for packing in PACKINGS}


@contextmanager
def opened(path: str | Path) -> Iterator[IO[bytes]]:
    """Open the file at `path` for writing: gzip if it ends in `.gz`, zstd if in `.zst`, else plain."""
    with Path(path).open("wb") as file:
        if str(path).endswith(".gz"):
            # No name and no time in the header, so that equal content gives equal files.
            with gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=6, mtime=0) as packed:
                yield cast(IO[bytes], packed)
        elif str(path).endswith(".zst"):
            with pa.CompressedOutputStream(pa.PythonFile(file), "zstd") as packed:
                yield packed
        else:
            yield file
