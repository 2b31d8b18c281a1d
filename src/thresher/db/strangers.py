"""Who could run code with our rights by a table that we use, and whom we let.

Whoever owns a table, or a function that it calls, may change it at any time: a trigger, a rule, a policy, a default, a
constraint or an index then runs their code in our session. In Postgres 14 every login may create tables in the schema
`public`. So owners are admitted who could act with our rights anyway, and those whom the schema's owner has admitted.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from thresher.db.names import quoted_name

# What each kind of relation is, other than a plain table.
_KINDS = {"p": "a partitioned table", "v": "a view", "m": "a materialized view", "f": "a foreign table"}


# The kinds of a table of ours; and of one that its owner may have partitioned.
PLAIN, PARTITIONED = "r", "rp"


class Code(NamedTuple):
    """A table, or a function, operator or type that a part of it uses; and what its owner is."""

    # The table's kind, as the catalog has it.
    kind: str
    # The part of the table that uses it, and what is used; neither for the table itself.
    part: str | None
    used: str | None
    owner: str
    superuser: bool
    # Whether the owner also owns the database, or the table's schema.
    of_database: bool
    of_schema: bool
    # Whether CREATE on the schema was granted to the owner by name, or to a role of which the owner is a member.
    by_name: bool
    # Whether our own role is the owner, or a member of it.
    ours: bool

    @property
    def admitted(self) -> bool:
        """Whether the owner may run code with our rights."""
        return self.superuser or self.of_database or self.of_schema or self.by_name or self.ours


def judge(found: Iterable[Code]) -> Iterator[str]:
    """Yield a sentence for each stranger who could run code with our rights."""
    for each in found:
        if each.admitted:
            continue
        admit = f"if {each.owner} is trusted, GRANT CREATE ON SCHEMA … TO {quoted_name(each.owner)}"
        if each.part is None:
            yield (
                f"it belongs to {each.owner}, who could run code with our rights: only superusers, the owners of the "
                "database and of the schema, roles of our own, and those to whom CREATE on the schema was granted by "
                f"name may own it. Give it to one of them (ALTER TABLE … OWNER TO …), or drop it; {admit}"
            )
        else:
            yield (
                f"{each.part} uses {each.used}, which belongs to {each.owner}, who could run code with our rights: "
                f"give it another owner, or drop what uses it; {admit}"
            )


def judge_own(found: Iterable[Code], kinds: str = PLAIN) -> Iterator[str]:
    """Yield what is wrong with a table of ours: beside strangers, another kind of relation than `kinds`.

    A plain table, which only we make, has no rules either.
    """
    parts = list(found)
    for kind in dict.fromkeys(each.kind for each in parts if each.part is None and each.kind not in kinds):
        yield f"it is {_KINDS.get(kind, 'something else')}; a table is needed"
    if kinds == PLAIN:
        rules = (each.part for each in parts if each.part is not None and each.part.startswith("rule "))
        yield from (f"{rule} can rewrite what we do" for rule in dict.fromkeys(rules))
    yield from judge(parts)
