"""Log lines of a Spark session that is being ended."""

import logging

import pytest

from thresher.spark.session.session import quiet_py4j


def say(what: str, path: str) -> None:
    """Log to the root logger, as from this file."""
    logging.getLogger().handle(logging.LogRecord("root", logging.ERROR, path, 1, what, (), None))


def test_only_py4j_is_silenced_while_the_jvm_ends(caplog: pytest.LogCaptureFixture) -> None:
    say("before", "/lib/py4j/java_gateway.py")
    with quiet_py4j():
        say("meanwhile", "/lib/py4j/java_gateway.py")
        say("somebody else", "/app/main.py")
        logging.getLogger("py4j").warning("its own logger's")
    say("after", "/lib/py4j/java_gateway.py")
    assert caplog.messages == ["before", "somebody else", "its own logger's", "after"]
