"""Which files and directories another user of this machine cannot change: code and caches are taken from no others.

A path is trusted if it and all directories above it belong to us or to root, and nobody else may write there. In a
directory above it with the sticky bit, such as /tmp, others may write: they can remove and rename only what is theirs.
A group may write if it is the owner's own and has no other member. On a read-only file system nobody writes.
"""

import contextlib
import grp
import os
import pwd
import stat
from pathlib import Path

_ACL = "system.posix_acl_access"


def why_untrusted(path: Path) -> str | None:
    """Return why another user could change what the path holds; None if it is trusted or does not exist.

    Resolve a path before, and use the result: a symbolic link may be replaced later.
    """
    found = path.resolve()
    if not found.exists():
        return None
    return next((why for place in (found, *found.parents) if (why := _why(place, above=place != found))), None)


def _why(place: Path, *, above: bool) -> str | None:
    try:
        status = place.stat()
        read_only = os.statvfs(place).f_flag & os.ST_RDONLY
    except OSError as error:
        return f"{place} cannot be looked at: {error.strerror}"
    if read_only or (above and status.st_mode & stat.S_ISVTX):
        writers = ""
    elif status.st_mode & stat.S_IWOTH:
        writers = "every user"
    else:
        writers = "a group" if status.st_mode & stat.S_IWGRP and not _own_group(place, status) else ""
    if not read_only and status.st_uid not in {0, os.geteuid()}:
        return f"{place} belongs to {_name(status.st_uid)}"
    return f"{writers} may write to {place}" if writers else None


def _own_group(place: Path, status: os.stat_result) -> bool:
    owner = _name(status.st_uid)
    with contextlib.suppress(OSError):
        # With an access list, the group's bits are those of everyone whom the list names.
        os.getxattr(place, _ACL)
        return False
    try:
        group = grp.getgrgid(status.st_gid)
    except KeyError:
        return False
    return group.gr_name == owner and set(group.gr_mem) <= {owner}


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"
