"""`make chaos`: a lake is disturbed in the middle of its work, run again, and held against one that was not, row by row.

`scene.py` is the small lake and its commands, `faults.py` what happens to it, `faulty_store.py` a store that has moods.
"""
