import pickle

import pytest

from thresher.core.errors import InvalidInput, ThresherError, shorten
from thresher.devstack.problem import JarMismatch
from thresher.outbox import InvalidMessage, NotInTransaction, SchemaRefused


@pytest.mark.parametrize(
    "error",
    [
        InvalidMessage("topic", "'a b'", "no spaces"),
        NotInTransaction("autocommit"),
        SchemaRefused("no such table"),
        JarMismatch("x.jar"),
    ],
)
def test_errors_survive_pickling_with_their_text(error: ThresherError) -> None:
    twin = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert type(twin) is type(error)
    assert str(twin) == str(error)


def test_refused_input_exits_with_2_and_failure_with_1() -> None:
    assert InvalidInput.exit_code == 2
    assert ThresherError.exit_code == 1


def test_a_shown_value_is_cut_to_a_line() -> None:
    assert len(shorten("x" * 10_000_000)) < 100
    assert len(shorten(list(range(100_000)))) < 100


def test_a_broken_repr_does_not_hide_the_problem() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert "Broken" in shorten(Broken())
