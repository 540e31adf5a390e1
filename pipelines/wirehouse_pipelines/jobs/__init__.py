"""Jobs and their runner: bronze, silver of connections, folds by key, upkeep, forgetting.

It may import stages and what is below it.
"""
