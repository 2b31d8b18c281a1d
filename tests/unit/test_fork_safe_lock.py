"""A lock that a thread of the parent holds while another one forks."""

import os
import signal
import threading

import pytest

from thresher.core.fork_safe_lock import ForkSafeLock


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_can_take_a_lock_of_the_parents_threads() -> None:
    lock = ForkSafeLock()
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            assert done.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(60)
    child = os.fork()
    if not child:
        # Ends the child if it hangs.
        signal.alarm(20)
        with lock:
            os._exit(7)
    _, status = os.waitpid(child, 0)
    done.set()
    holder.join()
    assert os.waitstatus_to_exitcode(status) == 7, "the child hung"
