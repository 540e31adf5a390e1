"""Great Expectations suites generated from the rules and the table definitions."""
