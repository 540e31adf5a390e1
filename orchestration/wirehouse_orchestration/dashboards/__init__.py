"""Dashboards: charts defined as data in infra/dashboards, and the code that shows them.

`boards` reads the definitions, `answers` queries the lake, `drawing` draws the results; `serving` (with `pages`),
`report` and `superset` show them.
"""
