"""Where the columns of a view come from, read from its SELECT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wirehouse_pipelines.query.sql import Token, tokens
from wirehouse_pipelines.tables import Table, all_tables

#: A table or view, and a column of it.
Origin = tuple[str, str]
Origins = Mapping[str, set[Origin]]
_DOT, _OPENS, _CLOSES = (Token("sign", text) for text in ".()")


def origins(view: Table) -> Origins:
    """Of each column of `view` the columns that it is made of, in the tables and views that stand in its SELECT.

    What decides on rows alone (WHERE) is left out. A column of constants has none.
    """
    assert view.view is not None, view.name
    return _statement(list(tokens(view.view)))


def _statement(found: Sequence[Token]) -> Origins:
    """Of SELECT … FROM … [UNION ALL SELECT …]; parts of a union give columns by one name."""
    columns: dict[str, set[Origin]] = {}
    for select in _split(found, "UNION"):
        items, relation = _split(select, "FROM")
        known = _relation(relation)
        words = items[items.index(Token("word", "SELECT")) + 1 :]
        for item in _split(words, ","):
            for name, made_of in _item(item, known).items():
                columns.setdefault(name, set()).update(made_of)
    return columns


def _relation(found: Sequence[Token]) -> Origins:
    """The columns of what follows FROM: layer.name, or a statement in brackets.

    If several are joined, each has an alias, and its columns are known as alias.column.
    """
    joined = [_split(_split(part, "LEFT")[0], "ON")[0] for part in _split(found, "JOIN")]
    if len(joined) > 1:
        return {f"{part[-1].text}.{name}": made_of for part in joined for name, made_of in _relation(part).items()}
    if found[0] == _OPENS:
        return _statement(_split(found[1:], ")")[0])
    table = all_tables()[f"{found[0].text}.{found[2].text}"]
    return {column.name: {(table.name, column.name)} for column in table.columns}


def _item(item: Sequence[Token], known: Origins) -> Origins:
    """One item of a SELECT's list: the name that it gives a column, and what it is made of."""
    if item[0].text == "*":
        return known
    name = item[-1]
    made_of = item[:-1] if Token("word", "AS") in item else item
    if item[0].text == "NULLIF":
        made_of = []  # It stands for a null of a type that has no name.
    used: set[Origin] = set()
    for number, token in enumerate(made_of):
        is_field, calls = made_of[number - 1 : number] == [_DOT], made_of[number + 1 : number + 2] == [_OPENS]
        if token.kind in ("word", "quoted") and not is_field and not calls:
            qualified = "".join(part.text for part in made_of[number : number + 3])
            used |= known.get(qualified, known.get(token.text, set()))
    return {name.text: used}


def _split(found: Sequence[Token], at: str) -> list[list[Token]]:
    """The pieces between the words or signs `at` that stand outside of brackets; a bracket that closes ends those."""
    pieces: list[list[Token]] = [[]]
    depth, outside = 0, -1 if at == ")" else 0
    for token in found:
        depth += (token == _OPENS) - (token == _CLOSES)
        if depth == outside and token.kind in ("word", "sign") and token.text == at:
            pieces.append([])
        else:
            pieces[-1].append(token)
    return pieces
