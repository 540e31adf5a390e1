"""Dashboards: charts as data in infra/dashboards, and what shows them.

`boards` reads the data, `answers` asks the lake, `drawing` makes pictures of the answers; `serving` (by
`pages`), `report` and `superset` show them.
"""
