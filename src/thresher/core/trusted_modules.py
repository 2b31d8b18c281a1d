"""Imports modules from certain directories only if no other user of this machine could change them.

1. Python asks before each import. A module that is found elsewhere is none of this module's business.
2. For a module in such a directory, its file, its cached bytecode and its package's directories are judged by
   `why_untrusted`, just before it is imported: packages, their modules, and what these import from there.
3. One that is not trusted raises `ImportError` with the reason, and none of its code is run.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from thresher.core.trusted_path import why_untrusted


class _Judge:
    """A finder of modules that finds none, and raises an error for those that others could change."""

    def __init__(self) -> None:
        self.directories: tuple[str, ...] = ()

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        """Return nothing, so that Python's own finder is asked next. Raises `ImportError`."""
        if path is not None and not self._covers(map(Path, path)):
            # A module of a package elsewhere: most imports, and not worth a second search.
            return
        spec = PathFinder.find_spec(name, path, target)
        places = [] if spec is None else list(_places_of(spec))
        if self._covers(places):
            for place in places:
                if why := why_untrusted(place):
                    raise ImportError(f"{name} is not imported: {why}", name=name)

    def _covers(self, places: Iterable[Path]) -> bool:
        return any(place.is_relative_to(directory) for place in places for directory in self.directories)


_judge = _Judge()


def judge_modules_of(*directories: str) -> None:
    """Import modules of these directories, and of all below, only if they are trusted. It can be called repeatedly."""
    _judge.directories = tuple(dict.fromkeys([*_judge.directories, *directories]))
    if _judge.directories and _judge not in sys.meta_path:
        # Just before Python's own finder: modules that an earlier finder provides are not looked for in directories.
        before = sys.meta_path.index(PathFinder) if PathFinder in sys.meta_path else 0
        sys.meta_path.insert(before, _judge)


def judged_directories() -> tuple[str, ...]:
    """Return the directories whose modules are judged in this process, for its workers."""
    return _judge.directories


def _places_of(spec: ModuleSpec) -> Iterator[Path]:
    if spec.has_location and spec.origin is not None:
        yield Path(spec.origin)
    if spec.cached is not None:
        # Bytecode is run instead of its source. Whoever may write to its directory may plant it.
        yield from (Path(spec.cached), Path(spec.cached).parent)
    yield from map(Path, spec.submodule_search_locations or ())
