"""The compiled path of what wire and session do; both give the same rows.

It may import session and what is below it.
"""
