"""`make chaos`: disturbs a lake while it works, runs it again, and compares it with an undisturbed lake.

`chaos/disturbed_lake.py` is the small lake and its commands, `faults.py` what happens to it, `faulty_store.py` a store
that has moods.
"""
