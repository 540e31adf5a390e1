"""The base of every decoder: errors, rules and findings, state machines, option tables.

It imports no other package of the codecs.
"""
