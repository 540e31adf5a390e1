"""Column lineage: which columns of tables each column of a view is computed from, parsed from the view's SELECT."""

from __future__ import annotations

from collections.abc import Sequence

from wirehouse_pipelines.query.sql import Token, tokens
from wirehouse_pipelines.tables import Table, all_tables

#: The name of a table or view, and of one of its columns.
Origin = tuple[str, str]
Origins = dict[str, set[Origin]]
_DOT, _OPENS, _CLOSES = (Token("sign", text) for text in ".()")


def origins(view: Table) -> Origins:
    """By column of `view`: the columns that it is computed from, of the tables and views in its SELECT.

    Columns that only select rows (WHERE) don't count. A constant column has no origins.
    """
    assert view.view is not None, view.name
    found = _statement(list(tokens(view.view)))
    return found | {column.name: found[column.time_of] for column in view.columns if column.time_of}


def _statement(found: Sequence[Token]) -> Origins:
    """The origins of columns in SELECT … [FROM …] [UNION ALL SELECT …]. Parts of a union are merged by column name."""
    columns: dict[str, set[Origin]] = {}
    for select in _split(found, "UNION"):
        items, *relation = _split(select, "FROM")
        known = _relation(relation[0]) if relation else {}
        words = items[items.index(Token("word", "SELECT")) + 1 :]
        for item in _split(words, ","):
            for name, made_of in _item(item, known).items():
                columns.setdefault(name, set()).update(made_of)
    return columns


def _relation(found: Sequence[Token]) -> Origins:
    """The columns of what follows FROM, which is layer.name or a statement in brackets, with their origins.

    In a join, each part has an alias, and its columns are named alias.column.
    """
    joined = [_split(_split(part, "LEFT")[0], "ON")[0] for part in _split(found, "JOIN")]
    if len(joined) > 1:
        return {f"{part[-1].text}.{name}": made_of for part in joined for name, made_of in _relation(part).items()}
    if found[0] == _OPENS:
        return _statement(_split(found[1:], ")")[0])
    table = all_tables()[f"{found[0].text}.{found[2].text}"]
    return {column.name: {(table.name, column.name)} for column in table.columns}


def _item(item: Sequence[Token], known: Origins) -> Origins:
    """The columns that one item of a SELECT's list defines, with their origins."""
    if item[-1].text == "*":
        part = "".join(token.text for token in item[:-1])
        return {name.removeprefix(part): made_of for name, made_of in known.items() if name.startswith(part)}
    name = item[-1]
    made_of = item[:-1] if Token("word", "AS") in item else item
    if item[0].text == "NULLIF":
        made_of = []  # Views use NULLIF only to write a null of a type that has no name in SQL.
    used: set[Origin] = set()
    for number, token in enumerate(made_of):
        is_field, calls = made_of[number - 1 : number] == [_DOT], made_of[number + 1 : number + 2] == [_OPENS]
        if token.kind in ("word", "quoted") and not is_field and not calls:
            qualified = "".join(part.text for part in made_of[number : number + 3])
            used |= known.get(qualified, known.get(token.text, set()))
    return {name.text: used}


def _split(found: Sequence[Token], at: str) -> list[list[Token]]:
    """Split at each word or sign `at` outside of brackets; for ")", at the bracket that closes the enclosing one."""
    pieces: list[list[Token]] = [[]]
    depth, outside = 0, -1 if at == ")" else 0
    for token in found:
        depth += (token == _OPENS) - (token == _CLOSES)
        if depth == outside and token.kind in ("word", "sign") and token.text == at:
            pieces.append([])
        else:
            pieces[-1].append(token)
    return pieces
