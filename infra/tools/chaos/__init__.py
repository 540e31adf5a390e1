"""`make chaos`: a lake is disturbed in the middle of its work, run again, and compared with one that was not.

`chaos/disturbed_lake.py` is the small lake and its commands, `faults.py` what happens to it, `faulty_store.py` a store
that has moods.
"""
