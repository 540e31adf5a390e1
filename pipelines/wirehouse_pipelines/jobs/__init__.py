"""Jobs and their runner: bronze, decoding of connections, folds by key; and upkeep and erasure.

It may import stages and what is below it.
"""
