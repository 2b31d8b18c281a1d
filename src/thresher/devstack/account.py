"""The account that Postgres runs under: the user's own; for root, `nobody`, since Postgres refuses to run as root."""

import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path

from thresher.devstack.problem import StackProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """An unprivileged account of the operating system."""

    name: str
    uid: int
    gid: int

    def can_enter(self, directory: Path) -> bool:
        """Whether this account may enter the directory and all its parents."""
        return all(self._may(place, stat.S_IXUSR, stat.S_IXOTH) for place in (directory, *directory.parents))

    def can_run(self, program: Path) -> bool:
        """Whether this account may start the program."""
        return self.can_enter(program.parent) and self._may(
            program, stat.S_IRUSR | stat.S_IXUSR, stat.S_IROTH | stat.S_IXOTH
        )

    def _may(self, place: Path, as_owner: int, as_other: int) -> bool:
        status = place.stat()
        needed = as_owner if status.st_uid == self.uid else as_other
        return status.st_mode & needed == needed


def server_account() -> Account | None:
    """Return the account to switch to for Postgres; None if our own can run it."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        raise StackProblem(
            "Postgres does not run as root and there is no account 'nobody': run as an ordinary user"
        ) from None
    return Account(name=entry.pw_name, uid=entry.pw_uid, gid=entry.pw_gid)
