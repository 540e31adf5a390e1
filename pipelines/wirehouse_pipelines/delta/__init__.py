"""Delta tables: reading, writing and committing them, with and without a JVM; and the ledger.

It may import lake and what is below it.
"""
