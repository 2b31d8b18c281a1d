import grp
import os
from pathlib import Path

import pytest

from thresher.core import trusted_path
from thresher.core.trusted_path import why_untrusted

# Files of other users need root; every user has the rest of these tests.
STRANGER = 65_534


@pytest.fixture
def place(tmp_path: Path) -> Path:
    path = tmp_path / "caches" / "jars"
    path.mkdir(parents=True)
    (path / "one.jar").write_bytes(b"")
    return path


def test_what_only_we_and_root_can_change_is_trusted(place: Path) -> None:
    assert why_untrusted(place) is None
    assert why_untrusted(place / "one.jar") is None
    assert why_untrusted(place / "missing") is None


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o757])
def test_a_directory_that_every_user_may_write_to_is_not(place: Path, mode: int) -> None:
    place.chmod(mode)
    assert why_untrusted(place) == f"every user may write to {place}"
    assert why_untrusted(place / "one.jar") == (None if mode & 0o1000 else f"every user may write to {place}")


def test_a_file_that_every_user_may_write_to_is_not(place: Path) -> None:
    (place / "one.jar").chmod(0o666)
    assert why_untrusted(place / "one.jar") == f"every user may write to {place / 'one.jar'}"


def test_a_directory_below_one_that_others_may_write_to_is_not(place: Path) -> None:
    place.parent.chmod(0o777)
    assert why_untrusted(place) == f"every user may write to {place.parent}"


def test_a_link_is_judged_by_the_place_that_it_leads_to(place: Path, tmp_path: Path) -> None:
    place.chmod(0o777)
    (tmp_path / "link").symlink_to(place)
    assert why_untrusted(tmp_path / "link") == f"every user may write to {place}"


@pytest.mark.parametrize(("name", "members", "trusted"), [("me", [], True), ("me", ["you"], False), ("us", [], False)])
def test_only_the_owners_own_group_may_write(
    place: Path, monkeypatch: pytest.MonkeyPatch, name: str, members: list[str], trusted: bool
) -> None:
    monkeypatch.setattr(trusted_path, "_name", lambda _: "me")
    monkeypatch.setattr(grp, "getgrgid", lambda _: type("G", (), {"gr_name": name, "gr_mem": members}))
    place.chmod(0o775)
    assert why_untrusted(place) == (None if trusted else f"a group may write to {place}")


def test_what_belongs_to_another_user_is_not_trusted(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        os.chown(place, STRANGER, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    assert "belongs to" in (why_untrusted(place) or "")


def test_nobody_writes_to_a_read_only_file_system(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A ConfigMap's directory has mode 0777, and is mounted read-only.
    place.chmod(0o777)
    monkeypatch.setattr(os, "statvfs", lambda _: type("S", (), {"f_flag": os.ST_RDONLY}))
    assert why_untrusted(place) is None
