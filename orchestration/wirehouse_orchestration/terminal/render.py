"""Values of tables as text: JSON, CSV and the terminal.

Captured values are untrusted: they may contain control characters that drive a terminal, or formulas that a
spreadsheet runs. They are escaped for each medium. Binary is lower-case hex, and whole decimals are integers.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import unicodedata
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

#: First characters that make a spreadsheet read a cell as a formula.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
#: Unicode categories that don't print or that change how their neighbours print.
UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def plain(value: Any) -> Any:
    """`value` of a table in JSON's types: binary as hex, whole decimals as integers, times as ISO 8601."""
    match value:
        case bytes() | bytearray() | memoryview():
            return value.hex()
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case datetime():
            return (value if value.tzinfo else value.replace(tzinfo=UTC)).isoformat().replace("+00:00", "Z")
        case date() | time():
            return value.isoformat()
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() if value and all(isinstance(item, tuple) for item in value):
            return {_key(key): plain(item) for key, item in value}
        case list() | tuple():
            return [plain(item) for item in value]
        case str() | int() | None:
            return value
    return str(value)


def _key(value: Any) -> str:
    key = plain(value)
    return key if isinstance(key, str) else json.dumps(key)


def json_line(row: Mapping[str, Any]) -> str:
    """`row` as one line of JSON in ASCII."""
    return json.dumps(plain(row), separators=(",", ":"), allow_nan=False)


def csv_cell(value: Any) -> str | int | float:
    """`value` for a CSV cell: nested values as JSON, text that a spreadsheet would run as a formula behind a quote.

    Control characters are escaped as for a terminal, because files are also viewed with `cat`.
    """
    shown = plain(value)
    if shown is None:
        return ""
    if isinstance(shown, str):
        return terminal(f"'{shown}" if shown.startswith(FORMULA_STARTS) else shown)
    if isinstance(shown, bool):
        return "true" if shown else "false"
    if isinstance(shown, int | float):
        return shown
    return json.dumps(shown, separators=(",", ":"))


def terminal(text: str) -> str:
    r"""`text` with control and other unprintable characters escaped, such as \x1b or \u202e."""
    if text.isprintable():
        return text
    return "".join(_escaped(char) if unicodedata.category(char) in UNPRINTABLE else char for char in text)


def _escaped(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def shell_word(text: str) -> str:
    r"""`text` as a word of a command. Control characters are written as bash and zsh read them: $'\x1b'."""
    if terminal(text) == text:
        return shlex.quote(text)
    shown = terminal(text.replace("\\", "\\\\").replace("'", "\\'"))
    # For them \x9b is a byte, and \u009b the character.
    return "$'" + re.sub(r"(?<!\\)((?:\\\\)*)\\x([89a-f])", r"\1\\u00\2", shown) + "'"


def cell(value: Any, hex_digits: int | None = None) -> str:
    """`value` for a table on the terminal; hex of more than `hex_digits` digits is cut to them and an ellipsis."""
    if isinstance(value, bytes) and hex_digits and 2 * len(value) > hex_digits:
        return f"{value.hex()[:hex_digits]}…"
    shown = plain(_cut(value, hex_digits) if hex_digits else value)
    if shown is None:
        return ""
    return terminal(shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False))


def _cut(value: Any, hex_digits: int) -> Any:
    """`value` with the binary inside it cut short."""
    match value:
        case bytes() if 2 * len(value) > hex_digits:
            return f"{value.hex()[:hex_digits]}…"
        case Mapping():
            return {key: _cut(item, hex_digits) for key, item in value.items()}
        case list() | tuple():
            return type(value)(_cut(item, hex_digits) for item in value)
    return value


def aligned_right(values: Iterable[Any]) -> bool:
    """Whether all values of a column are numbers."""
    present = [value for value in values if value is not None]
    return bool(present) and all(isinstance(value, int | float | Decimal) for value in present)
