"""The table of docs/permissions.md: the rights of each program, one by one, and their ACLs."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

from tests.faults.guarded import Guard, acl_of

PAGE = Path(__file__).parents[2] / "docs" / "permissions.md"
_KINDS = {
    "Topic": ResourceType.TOPIC,
    "Group": ResourceType.GROUP,
    "TransactionalId": ResourceType.TRANSACTIONAL_ID,
}
_OPERATIONS = {
    "Alter": AclOperation.ALTER,
    "Create": AclOperation.CREATE,
    "Delete": AclOperation.DELETE,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
    "Read": AclOperation.READ,
    "Write": AclOperation.WRITE,
}
# What a cell calls something that has a name only in a configuration.
Names = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Right:
    """One operation of a row, for one of its programs."""

    # The program with its condition: "tracker, with `election: neli`".
    program: str
    kind: str
    name: str
    operation: str
    # In brackets: the program works without it.
    spare: bool = False

    def named(self, names: Names) -> list[str]:
        """Return the names of the resources."""
        if self.name in names:
            return list(names[self.name])
        return [re.sub("<[a-z]+>", lambda found: names[found.group()][0], self.name)]

    def acls(self, names: Names) -> Iterator[AclBinding]:
        """Yield the ACLs, for the names that stand for those in the table."""
        for name in self.named(names):
            pattern = ResourcePatternType.PREFIXED if name.endswith("*") else ResourcePatternType.LITERAL
            yield acl_of(
                _KINDS[self.kind], name.rstrip("*"), pattern, _OPERATIONS[self.operation], AclPermissionType.ALLOW
            )


def rights() -> list[Right]:
    """Return the rights of all rows."""
    found = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 4 or cells[1] not in _KINDS:
            continue
        parts = cells[0].split(", ")
        conditions = [part for part in parts if part.startswith(("with ", "for ", "to "))]
        found += [
            Right(
                program=", ".join([program, *conditions]),
                kind=cells[1],
                name=cells[2].strip("`"),
                operation=operation.strip(" ()"),
                spare="(" in operation,
            )
            for program in parts
            if program not in conditions
            for operation in cells[3].split(",")
        ]
    return found


@contextmanager
def granted(guard: Guard, given: Iterable[Right], names: Names) -> Iterator[None]:
    """Give the guarded user these rights and no others, while the context lasts."""
    acls = list(dict.fromkeys(acl for right in given for acl in right.acls(names)))
    assert acls
    try:
        for acl in acls:
            guard.bind(acl)
        yield
    finally:
        for acl in acls:
            guard.unbind(acl)
