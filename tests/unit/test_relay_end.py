"""What a relay ends with when its Spark is in trouble too."""

import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from thresher.core.errors import Superseded
from thresher.db import TableName
from thresher.relay.leader import relay
from thresher.relay.leader.relay import Relay
from thresher.relay.settings import Mandate, Settings
from thresher.spark.driver.snapshot import EngineState, Snapshot
from thresher.spark.problem import EngineLost

SETTINGS = Settings(name="r", dsn="", outbox=TableName(table="outbox"), kafka={})
MANDATE = Mandate(
    settings=SETTINGS, outbox_id="o", term="t", term_time=datetime.now(UTC), since="s", progress_topic_id="p"
)


class Stuck:
    """An engine whose Spark does not answer when it is told to stop."""

    done = False

    def __init__(self, *_: Any, **__: Any) -> None:
        self._asked = threading.Event()

    def start(self) -> None: ...

    def snapshot(self) -> Snapshot:
        return Snapshot(pipeline="r", state=EngineState.RUNNING, error=None, master=None, shards=())

    def request_stop(self) -> None:
        self._asked.set()

    def wait(self) -> Snapshot:
        assert self._asked.wait(60)
        raise EngineLost("Spark did not answer")


@pytest.mark.parametrize("superseded", [True, False])
def test_who_was_superseded_must_not_be_started_again_although_its_spark_was_lost(
    superseded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    led = Relay(SETTINGS)

    class Watch:
        def __init__(self, _mandate: Mandate) -> None: ...

        def look(self) -> None:
            if superseded:
                raise Superseded("a newer relay has taken over")
            led.request_stop()

        def close(self) -> None: ...

    monkeypatch.setattr(relay, "Engine", Stuck)
    monkeypatch.setattr(relay, "_Watch", Watch)
    monkeypatch.setattr(relay, "_WATCH_SECONDS", 0.01)
    monkeypatch.setattr(led, "_take_over", lambda: MANDATE)
    monkeypatch.setattr(led, "_taken_back", lambda _mandate: False)
    with pytest.raises(Superseded if superseded else EngineLost) as raised:
        led.run()
    assert raised.value.exit_code == (3 if superseded else 1)


def test_a_watch_that_outlives_its_leadership_says_nothing_about_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    class Watch:
        def __init__(self, _mandate: Mandate) -> None: ...

        def look(self) -> None:
            # It took so long that nobody waits for it any more.
            over.set()
            raise Superseded("the term is another: the next leadership's")

        def close(self) -> None: ...

    monkeypatch.setattr(relay, "_Watch", Watch)
    led, engine = Relay(SETTINGS), Stuck()
    led._look_on(MANDATE, engine, over)  # type: ignore[arg-type]
    assert led._error is None
