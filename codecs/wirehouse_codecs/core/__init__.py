"""The base of every decoder: errors, rules and findings, state machines, option tables, sets of integers,
snapshots of carried state, and how long such state lives.

It imports no other package of the codecs.
"""
