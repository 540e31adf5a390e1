"""Where the columns of a view come from."""

from __future__ import annotations

import pytest

from wirehouse_pipelines.query.lineage import origins
from wirehouse_pipelines.tables import Table, all_tables

#: Columns of views that are constants or only count rows.
CONSTANT = {"protocol", "known", "goes_on", "packets", "record_number"}
VIEWS = [table for table in all_tables().values() if table.view]


def _view(select: str) -> Table:
    return Table("gold.tried", "", (), view=select)


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: str(view.name))
def test_each_column_of_a_view_is_found_and_comes_from_columns_that_there_are(view: Table) -> None:
    found = origins(view)
    assert set(found) == {column.name for column in view.columns}
    assert {name for name, made_of in found.items() if not made_of} <= CONSTANT
    for table, column in set().union(*found.values()):
        assert column in {known.name for known in all_tables()[table].columns}


def test_a_field_is_its_struct_and_what_is_united_has_several_origins() -> None:
    found = origins(all_tables()["gold.cardinal_violations"])
    assert found["message"] == {("gold.cardinal_found", "message"), ("silver.cardinal", "finding")}
    assert found["number"] == {("gold.cardinal_found", "number"), ("silver.cardinal", "message")}


def test_a_null_that_a_column_stands_for_is_no_origin() -> None:
    united = origins(all_tables()["gold.violations"])["connection_id"]
    assert ("gold.wallaroo_violations", "connection_id") in united
    assert not {table for table, _ in united} & {"bronze.findings", "gold.cardinal_violations"}


def test_all_columns_of_a_part_of_a_join_are_its_own() -> None:
    join = "bronze.messages AS own JOIN (SELECT topic FROM bronze.messages) AS other ON other.topic = own.topic"
    found = origins(_view(f"SELECT * FROM (SELECT own.* FROM {join}) AS both"))
    assert found["key"] == {("bronze.messages", "key")}
    assert "own.key" not in found


def test_names_inside_of_other_selects_are_followed() -> None:
    inner = "SELECT *, MAX(offset) OVER (PARTITION BY topic) AS last_offset FROM bronze.messages"
    found = origins(_view(f"SELECT source, last_offset + 1 AS next_offset FROM ({inner}) AS told WHERE offset = 0"))
    assert found == {
        "source": {("bronze.messages", "source")},
        "next_offset": {("bronze.messages", "offset"), ("bronze.messages", "topic")},
    }
