"""Statements in a process of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
from wirehouse_pipelines.query import sql_process as sql_apart
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.lake.windows import Windows

print("imported")
with sql_apart.query(Lake("lake", Windows("day", "2015-01-01")), "SELECT 7 AS n") as reader:
    print(reader.read_all().to_pylist())
"""


def test_the_process_of_a_statement_does_not_import_the_program_again(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    answer = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True)
    assert (answer.stdout, answer.stderr) == ("imported\n[{'n': 7}]\n", "")
