"""The key of a lake: made once, private, and what is sealed under it."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from wirehouse_pipelines.lake import hash_key
from wirehouse_pipelines.lake.hash_key import HashKeyError, SealError, StateSeal
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.lake.windows import Windows


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    monkeypatch.delenv(hash_key.VARIABLE, raising=False)
    return Lake(str(tmp_path / "lake"), Windows("day", "2015-01-01"))


def test_a_lake_makes_its_key_once_for_itself_alone(lake: Lake) -> None:
    made = hash_key.of(lake)
    assert hash_key.of(lake) == made
    assert (Path(lake.root) / hash_key.NAME).stat().st_mode & 0o777 == 0o600


def test_the_key_of_the_environment_comes_first(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    own, name = hash_key.of(lake), hash_key.name_of(lake)
    monkeypatch.setenv(hash_key.VARIABLE, "secret")
    assert hash_key.of(lake) == b"secret" != own
    assert hash_key.name_of(lake) != name
    assert "secret" not in hash_key.name_of(lake)
    monkeypatch.setenv(hash_key.VARIABLE, "")
    with pytest.raises(HashKeyError, match="unset it"):
        hash_key.of(lake)


def test_what_is_sealed_is_read_with_the_key_alone() -> None:
    seal = StateSeal(b"key")
    sealed = seal.close("a cookie", b"flow")
    assert sealed == seal.close("a cookie", b"flow")
    assert "cookie" not in sealed
    assert pickle.loads(pickle.dumps(seal)).open(sealed, b"flow") == "a cookie"
    assert "key" not in repr(seal).partition("(")[2]
    for other, about, text in (
        (StateSeal(b"other"), b"flow", sealed),
        (seal, b"another flow", sealed),
        (seal, b"flow", sealed[:-4]),
        (seal, b"flow", "?"),
    ):
        with pytest.raises(SealError, match="restore the key"):
            other.open(text, about)
