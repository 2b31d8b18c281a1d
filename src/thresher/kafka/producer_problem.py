"""The errors of a transactional producer. All but `ProducerRefused` mean: discard it, make another one, `init`."""

from collections import Counter
from typing import ClassVar

from confluent_kafka import KafkaError

from thresher.core.errors import ThresherError
from thresher.kafka.refusal import Refusal, refusal_of
from thresher.kafka.transaction.timeouts import TransactionTimeouts

# How many partitions an error names.
_NAMED = 5


class ProducerProblem(ThresherError):  # noqa: N818
    """The producer cannot go on. A new producer can, after recovery."""

    retryable: ClassVar[bool] = True


class CommitUnknown(ProducerProblem):
    """The transaction may or may not be committed. Only what the broker holds can tell."""


class RecordsUnanswered(ProducerProblem):
    """Partitions did not answer for records in time. The records were dropped, and the producer is not used again.

    Its arguments are the text, and for each partition its topic, its number and the number of unanswered records.
    """

    @property
    def partitions(self) -> tuple[tuple[str, int, int], ...]:
        """Topic, partition and number of unanswered records, for each partition."""
        return tuple(self.args[1])

    def __str__(self) -> str:
        return str(self.args[0])


class InitBlocked(ProducerProblem):
    """The last transaction of this transactional id cannot end: one of its partitions cannot be written to."""


class OffsetsUnknown(ProducerProblem):
    """The offsets may or may not be part of the transaction. It stays uncommitted: this producer refuses to commit."""


class ProducerFenced(ProducerProblem):
    """Another producer with the same transactional id has taken over, or the client had a fatal error."""


class MemberFenced(ProducerProblem):
    """The consumer group refused the offsets: their sender is no longer the member that owns the partitions."""


class ProducerRefused(ThresherError):  # noqa: N818
    """The broker refuses this producer: credentials, permissions or limits. Somebody has to act."""

    exit_code: ClassVar[int] = 4


def records_unanswered(owing: Counter[tuple[str, int]], seconds: float, last: str) -> RecordsUnanswered:
    """Return the error for the unanswered records of each partition; -1 stands for a partition not chosen yet."""
    named = [f"{topic}/{partition}" if partition >= 0 else topic for topic, partition in sorted(owing)]
    text = (
        f"{owing.total()} records were not answered for in {seconds:g} s by {', '.join(named[:_NAMED])}"
        f"{' and others' if len(named) > _NAMED else ''}{last}"
    )
    return RecordsUnanswered(text, [(*place, count) for place, count in sorted(owing.items())])


def raise_certain(
    what: str, error: KafkaError, transactional_id: str, timeouts: TransactionTimeouts, last: str
) -> None:
    """Raise if the outcome is certain: the producer was refused or fenced. `last` is the client's last error."""
    if refusal_of(error) is Refusal.CLIENT:
        if error.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
            longest = timeouts.properties()["transaction.timeout.ms"]
            remedy = f"raise the broker's transaction.max.timeout.ms to at least {longest}"
        elif error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            remedy = "grant it Read on the consumer group"
        else:
            remedy = "grant it Write and Describe on its transactional ids and topics, or mend its credentials"
        raise ProducerRefused(f"the broker refuses the producer {transactional_id}: {error.str()}; {remedy}")
    if error.fatal() or refusal_of(error) is Refusal.FENCED:
        raise ProducerFenced(f"{what}: {error.str()}{last}")
