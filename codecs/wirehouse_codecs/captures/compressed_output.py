"""Files that are written plain or compressed, by the end of their name. The same content gives the same file."""

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
    """`write` by the names that a file of `suffix` may end in."""
    return {suffix + packing: write for packing in PACKINGS}


@contextmanager
def opened(path: str | Path) -> Iterator[IO[bytes]]:
    """The file at `path` to write to: gzip if that ends in `.gz`, zstd if in `.zst`, else plain."""
    with Path(path).open("wb") as file:
        if str(path).endswith(".gz"):
            # Without a time in its header.
            with gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=6, mtime=0) as packed:
                yield cast(IO[bytes], packed)
        elif str(path).endswith(".zst"):
            with pa.CompressedOutputStream(pa.PythonFile(file), "zstd") as packed:
                yield packed
        else:
            yield file
