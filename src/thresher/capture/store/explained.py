"""Raises database errors for a capture: the message about a missing right names the command that prints its grants."""

from functools import partial

from thresher.db.postgres import sessions

# Not `schema check`: without rights, its role cannot look either.
explained = partial(
    sessions.explained,
    "'thresher capture schema print -c FILE --role ROLE' prints the grants: let the tables' owner run them",
)
