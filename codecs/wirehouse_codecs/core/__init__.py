"""What every decoder builds on: errors, rules and findings, state machines, option tables.

It imports no other room.
"""
