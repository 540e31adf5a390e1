"""Stages: how the rows of one table become the rows of others, whatever their number, without rows in the JVM.

Theory, on a page
-----------------
A decoder needs the segments of a port pair one after another, in the order of arrival. They are in many files, mixed
with those of other port pairs. So rows must be grouped by a **key** (here the port pair) and sorted by an **order**
within it. That is the only hard part; the rest is reading and writing columns, which needs no engine.

A stage has five steps:

    read      map tasks read shares of the input's files, columns only, and prepare them: filter, derive the key
    exchange  packed rows are sent to the bucket of their key
    fold      a task takes its bucket's rows in order and turns them into rows of tables
    write     the same task writes these into files of the tables
    commit    the driver names the files in the table's log

**Packed pieces.** Spark converts every row that it moves from one Python process to another. So it should move few
rows. A map task sorts what it has read, a *run*, by (key, order), splits it by bucket, and returns *pieces* of some
megabytes. A piece is one row for Spark: a binary value with many rows as compressed Arrow, and as columns the bucket
and the key and order of the piece's first row. Spark's shuffle moves pieces and sorts those of a bucket by these
columns.

**Merging in flat memory.** A bucket's pieces arrive in the order of their first rows. All rows of a later piece come
after its first row, and so after the first row of the current piece. All waiting rows before that row are therefore
complete: they are sorted and passed on, and the rest waits. How many rows wait depends on how much runs overlap. The
runs of a single large key overlap little, because its rows mostly come in order: it streams, however large it is. With
many small keys, all runs overlap, and about the whole bucket waits. So the size of buckets is limited, by using enough
of them, and the size of a key is not.

**Equal rows.** The fold sees the rows of each key in one order, whatever the shares, runs, pieces and buckets. Nulls
come first: carried state has no arrival, and so it is the first that a fold sees of its key.

**Without an order.** If each row is decoded by itself, nothing is exchanged: map tasks read, fold and write.

**Small inputs.** If everything fits into one bucket, one task does all steps with the same functions, without exchange.

**Files and attempts.** A task writes files to their final place, under unique names, and returns the names. A file that
no commit names isn't part of a table. So a task that is killed, repeated or run twice at once leaves orphaned files,
never rows; upkeep removes such files when they are older than any run. An attempt returns its names when all of its
files are complete, and the driver commits the files of one attempt per task.

**Several stages.** What a stage needs of a former one is in files, too: those that it wrote for a table, or wrote in a
table's folder only for the next stage (`Stage.passed`). Only a few rows go through the driver (`Stage.returned`).

`declaration` defines what a stage is, `pieces` packs and merges, `running` runs a stage in this process or in Spark.
None of them knows a protocol. A fold is a function of Arrow batches, so it is tested without files, tasks or a JVM.
"""

from wirehouse_pipelines.stages.declaration import Fold, Input, Order, Prepare, Stage, Where
from wirehouse_pipelines.stages.running import OtherWindowError, Written, folded, run, run_here

__all__ = [
    "Fold",
    "Input",
    "Order",
    "OtherWindowError",
    "Prepare",
    "Stage",
    "Where",
    "Written",
    "folded",
    "run",
    "run_here",
]
