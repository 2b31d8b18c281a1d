"""The glossary is in alphabetical order, and names modules and files that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "glossary.md").read_text()
ENTRY = re.compile(r"- \*\*([^*]+)\*\*: .+\. \((`[\w./]+`(?:, `[\w./]+`)*)\)")
ENTRIES = [ENTRY.fullmatch(line) or line for line in PAGE.splitlines() if line.startswith("-")]


def exists(place: str) -> bool:
    """Tell whether a module of ours, or a file of the repository, exists."""
    if not place.startswith("thresher"):
        return (ROOT / place).is_file()
    path = ROOT / "src" / place.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def test_every_entry_has_a_definition_and_a_place() -> None:
    assert [each for each in ENTRIES if isinstance(each, str)] == []
    assert ENTRIES


def test_entries_are_in_alphabetical_order() -> None:
    words = [each[1].casefold() for each in ENTRIES]
    assert words == sorted(set(words))


def test_every_place_exists() -> None:
    places = [place for each in ENTRIES for place in re.findall(r"`([\w./]+)`", each[2])]
    assert [place for place in places if not exists(place)] == []
    assert not exists("thresher.nowhere")
    assert not exists("tests/nowhere.py")
