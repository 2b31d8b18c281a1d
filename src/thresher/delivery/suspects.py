"""Rows among which there is poison, in groups: one for each transaction that was rejected and named nobody.

A transaction carries rows of one group alone, and half of the group at most. If it is rejected too, these rows are the
new group, and nothing is known of the others any more. So each rejection halves a group, whichever is read first.
"""

from collections.abc import Iterable

Key = tuple[int, int]


class Suspects:
    """The groups. For one thread."""

    def __init__(self) -> None:
        self._groups: dict[Key, set[Key]] = {}

    def __bool__(self) -> bool:
        return bool(self._groups)

    def accuse(self, keys: Iterable[Key]) -> None:
        """Take in that one of these rows, which went together, is poison."""
        group = set(keys)
        outdated = {id(self._groups[key]) for key in group if key in self._groups}
        self._groups = {key: each for key, each in self._groups.items() if id(each) not in outdated}
        self._groups.update(dict.fromkeys(group, group))

    def clear(self, key: Key) -> None:
        """Take in that a row was delivered, or is condemned."""
        if (group := self._groups.pop(key, None)) is not None:
            group.discard(key)

    def fitting(self, keys: Iterable[Key]) -> int:
        """Return how many of these rows may go together, from the first on."""
        first: set[Key] | None = None
        count = 0
        for count, key in enumerate(keys):
            group = self._groups.get(key)
            if count == 0:
                first = group
            elif group is not first or (group is not None and 2 * count >= len(group)):
                return count
        return count + 1
