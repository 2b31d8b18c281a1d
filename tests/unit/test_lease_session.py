"""The name of a lease's session, which tells a standby the leader."""

import os
import socket
from uuid import uuid4

import pytest

from thresher.election.lease_session import leader_of, session_name


@pytest.mark.parametrize("lease", ["orders", "o" * 200])
def test_a_session_names_its_process(lease: str) -> None:
    holder = uuid4()
    name = session_name(lease, holder)
    assert len(name.encode()) <= 63
    assert name.startswith(f"thresher-lease/{lease[:8].rstrip('/')}"[:20])
    assert leader_of(str(holder), name) == f"process {os.getpid()} on {socket.gethostname()[:22]}"


@pytest.mark.parametrize("session", [None, "", "pgbouncer"])
def test_a_holder_with_an_unknown_session_is_named_by_id(session: str | None) -> None:
    holder = str(uuid4())
    assert leader_of(holder, session) == f"the holder {holder} of the lease"
