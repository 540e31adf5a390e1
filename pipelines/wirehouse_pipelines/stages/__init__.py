"""Stages: how the rows of one table become the rows of others, whatever their number, without rows in the JVM.

Theory, on a page
-----------------
A decoder needs the segments of a port pair one after another, in the order of arrival. They lie in many files, mixed
with those of other port pairs. So they must come together by a **key** (whose rows they are) and stand in an **order**
within it. That is all that is hard here; the rest is reading and writing columns, which needs no engine.

A stage has five steps:

    read      map tasks read shares of the input's files, columns only, and prepare them: filter, derive the key
    exchange  rows go to the bucket of their key, packed
    fold      a task takes its bucket's rows in order and makes rows of tables of them
    write     the same task writes these into files of the tables
    commit    the driver names the files in the table's log

**Packed pieces.** To Spark a row is an object that it takes apart and builds again on each way between Python and
Python. So it gets few: a map task sorts what it read, a *run*, by (key, order), splits it by bucket, and hands on
*pieces* of some megabytes, each one value: rows as Arrow, compressed. Beside it stand the bucket and the key and
order of the piece's first row, as columns. Spark's shuffle moves pieces and sorts those of a bucket by these columns.

**Merging in flat memory.** A bucket's pieces arrive in the order of their first rows. Whatever a later piece holds
comes after its first row, and so after the first row of the piece at hand. All waiting rows before that one are thus
complete: they are sorted and handed on, and the rest waits. How much waits depends on how many runs overlap. The rows
of a single large key lie one after another in its runs, which overlap little: it streams, however large it is. Of
many small keys each run has some anywhere: all runs overlap, and what waits is about the bucket. So buckets are
bounded, by their number, and keys are not.

**Equal rows.** The fold sees the rows of each key in one order, whatever the shares, runs, pieces and buckets. Nulls
come first: carried state has no arrival, and so it is the first that a fold sees of its key.

**Small inputs.** Where all fits one bucket, one task does everything by itself: the same functions, without exchange.

**Files and attempts.** A task writes files to where they stay, under names that nothing else has, and returns the
names. What no commit names is no part of a table. So a task that is killed, repeated or run twice at once leaves
orphans, never rows; upkeep removes them when they are older than any run. An attempt gives its names back when all of
its files are complete, and the driver commits those of one attempt for each task.

`declaration` says what a stage is, `pieces` packs and merges, `running` does it: here, or by Spark. None of them
knows a protocol. A fold is a function of Arrow batches, so it is tested without files, tasks or a JVM.
"""

from wirehouse_pipelines.stages.declaration import Fold, Input, Order, Prepare, Stage
from wirehouse_pipelines.stages.running import OtherWindowError, folded, run, run_here

__all__ = ["Fold", "Input", "Order", "OtherWindowError", "Prepare", "Stage", "folded", "run", "run_here"]
