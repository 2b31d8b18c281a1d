"""Advice on topics in the output of checks: it changes no exit code, and a broker without an answer fails none."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from thresher.cli.output import note

if TYPE_CHECKING:
    from thresher.kafka.topic_advice import Advice, TopicUse


def advised(kafka: Mapping[str, Any], uses: "Callable[[], Iterable[TopicUse]]") -> "list[Advice] | str":
    """Return the advice for these topics; or, if the cluster gives no answer, the reason."""
    # Imported here: a check of tables alone needs no packages for Kafka.
    from confluent_kafka import KafkaException  # noqa: PLC0415

    from thresher.kafka.admin import Admin  # noqa: PLC0415
    from thresher.kafka.problem import reason_of  # noqa: PLC0415
    from thresher.kafka.topic_advice import topic_advice  # noqa: PLC0415

    admin = Admin.of(kafka)
    try:
        admin.require_answer()
        return topic_advice(admin, uses())
    except KafkaException as error:
        return f"the topics were not looked at: {reason_of(error.args[0])}"


def plain_advice(advice: "list[Advice] | str | None") -> dict[str, object]:
    """Return the part of a JSON answer that holds the advice; nothing if topics were not to be looked at."""
    if advice is None:
        return {}
    return {"advice": None, "unknown": advice} if isinstance(advice, str) else {"advice": [a.plain() for a in advice]}


def show_advice(advice: "list[Advice] | str | None") -> None:
    """Show people the advice."""
    for each in [advice] if isinstance(advice, str) else advice or ():
        note(f"advice: {each}")
