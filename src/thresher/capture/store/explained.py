"""Raises database errors for a capture: the message about a missing right names the command that prints its grants."""

from functools import partial

from thresher.db.postgres import sessions

explained = partial(sessions.explained, "'thresher capture schema check -c FILE' has the grants that are missing")
