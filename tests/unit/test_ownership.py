"""Whom a path protects from: the modes and owners of the path and of everything above it."""

import os
from pathlib import Path

import pytest

from thresher.core.ownership import changeable_by_others


@pytest.fixture
def file(tmp_path: Path) -> Path:
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True, mode=0o755)
    (inner / "file").touch(mode=0o644)
    return inner / "file"


def test_a_file_of_ours_below_directories_of_ours_is_safe(file: Path) -> None:
    assert changeable_by_others(file) is None


@pytest.mark.parametrize("levels", [0, 1, 2])
@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_a_writable_place_anywhere_on_the_path_is_named(file: Path, levels: int, mode: int) -> None:
    place = (file, *file.parents)[levels]
    place.chmod(mode)
    assert changeable_by_others(file) == f"{place} is writable for others (mode {mode:04o})"


def test_the_sticky_bit_protects_what_is_below_it(file: Path) -> None:
    file.parent.chmod(0o1777)
    assert changeable_by_others(file) is None
    # In the directory itself, others may make the entries that they like.
    assert changeable_by_others(file.parent) == f"{file.parent} is writable for others (mode 1777)"


def test_a_link_is_safe_only_if_both_its_ends_are(file: Path) -> None:
    links = file.parents[1] / "links"
    links.mkdir(mode=0o755)
    (links / "link").symlink_to(file)
    assert changeable_by_others(links / "link") is None
    links.chmod(0o777)
    assert changeable_by_others(links / "link") == f"{links} is writable for others (mode 0777)"
    links.chmod(0o755)
    file.parent.chmod(0o777)
    assert changeable_by_others(links / "link") == f"{file.parent} is writable for others (mode 0777)"


def test_a_file_of_another_account_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        os.chown(file, 65534, 65534)
        assert changeable_by_others(file) == f"{file} belongs to user id 65534"
    else:
        # Everything of ours is another account's to somebody else.
        mine = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
        assert changeable_by_others(file) is not None
