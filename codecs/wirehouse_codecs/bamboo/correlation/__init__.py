"""What several connections or messages say together.

It may import log and what is below it.
"""
