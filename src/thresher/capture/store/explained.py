"""The database's errors as a capture tells them: a missing right points to the command that has its grants."""

from functools import partial

from thresher.db.postgres import sessions

explained = partial(sessions.explained, "'thresher capture schema check -c FILE' has the grants that are missing")
