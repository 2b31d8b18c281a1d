"""`thresher queue`: message queues on Kafka from a shell: creates topics, sends, receives and inspects messages.

`receive` starts no message that it does not print, so other consumers still get all other messages.
"""

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thresher.cli.form_command import add_form_command
from thresher.cli.layout.help_page import Commands
from thresher.cli.output import (
    AsJson,
    Yes,
    counted,
    emit_json,
    note,
    result,
    sentence,
    table,
)
from thresher.cli.queue import dead, tracking
from thresher.cli.queue.loading import (
    ConfigFile,
    JsonLines,
    QueueId,
    form,
    given_queue_id,
    load_config,
    text_of,
)
from thresher.cli.queue.receiving import receive_messages
from thresher.cli.queue.sending import send_lines
from thresher.cli.stack.choosing import StackName, with_broker
from thresher.cli.stepping_over import step_over_batches
from thresher.core.errors import shorten
from thresher.core.signals import stopped_by_signals

if TYPE_CHECKING:
    from thresher.queue import Message, MessageId

app = Commands(help="Message queues on Kafka: create topics, send, receive, inspect, redeliver.", no_args_is_help=True)


def init(
    config: ConfigFile = None,
    stack: StackName = None,
    partitions: Annotated[
        int | None,
        typer.Option(help="Least number of partitions of the message topic; by default a new one has 4.", min=1),
    ] = None,
    marker_partitions: Annotated[
        int | None,
        typer.Option(help="Least number of partitions of the marker topic; by default a new one has 4.", min=1),
    ] = None,
    *,
    flags: Mapping[str, Any],
    as_json: AsJson = False,
) -> None:
    """Create the missing topics of the queues, and check the existing ones, which are not changed.

    Exit code 4 if a topic could lose messages, or has too few partitions: the output says what to do. Advice on limits,
    compression and replicas stops nothing.
    """
    # Imported here, as in every command: the other commands work without the packages of queues.
    from thresher.queue.topics import init_topics  # noqa: PLC0415

    judged = init_topics(
        load_config(config, with_broker(flags, stack)), partitions=partitions, marker_partitions=marker_partitions
    )
    suitable = not any(topic.problems for topic in judged)
    if as_json:
        emit_json({"suitable": suitable, "topics": [asdict(topic) for topic in judged]})
    else:
        table(
            "Topics of the queues",
            ["topic", "partitions", ""],
            [[each.name, str(each.partitions), "made" if each.made else "was there"] for each in judged],
        )
        for each in judged:
            for problem in each.problems:
                sentence(f"{each.name}: {problem}")
        for each in judged:
            for advice in each.advice:
                note(f"advice: {advice}")
    raise typer.Exit(0 if suitable else 4)


def step_over(
    queues: Annotated[
        list[str] | None,
        typer.Argument(metavar="QUEUE", help="Ids of queues; without any, all that have a consumer group."),
    ] = None,
    config: ConfigFile = None,
    stack: StackName = None,
    yes: Yes = False,
    *,
    flags: Mapping[str, Any],
    as_json: AsJson = False,
) -> None:
    """Move queues over batches of the message topic that cannot be decompressed.

    A queue stands still before such a batch, and its consumers log the partition and the offset. If a larger
    receive.message.max.bytes in 'consumer' lets them read the batch, no message is lost: try that first. Otherwise stop
    the queue's consumers and step over: messages of the queue in the batch are then never delivered.
    """
    from thresher.queue.hand_off.stepping_over import step_over as move  # noqa: PLC0415
    from thresher.queue.hand_off.stepping_over import stuck_queues  # noqa: PLC0415

    problems: list[str] = []
    ids = [given_queue_id(queue, problems) for queue in queues or ()]
    loaded = load_config(config, with_broker(flags, stack), problems)
    step_over_batches(
        "queue step-over",
        lambda: list(stuck_queues(loaded, ids)),
        partial(move, loaded),
        where=lambda each: f"{text_of(each.queue)}: partition {each.partition}",
        plain=lambda each: {**asdict(each), "queue": text_of(each.queue)},
        lost="Messages in them are never delivered",
        yes=yes,
        as_json=as_json,
    )


def send(
    queue: QueueId,
    payload: Annotated[
        str | None, typer.Argument(metavar="PAYLOAD", help="The payload. If it is - or missing: all of standard input.")
    ] = None,
    config: ConfigFile = None,
    stack: StackName = None,
    header: Annotated[list[str] | None, typer.Option(help="A header, as name=value; may be repeated.")] = None,
    delay: Annotated[float, typer.Option(help="Seconds until delivery. Needs a running tracker.", min=0)] = 0.0,
    own_max_deliveries: Annotated[
        int | None, typer.Option(help="Maximum number of deliveries; overrides the queue's limit.", min=1)
    ] = None,
    own_ttl: Annotated[
        float | None, typer.Option(help="Seconds after the first start in which a message is redelivered.", min=0.001)
    ] = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="Send each line of standard input, without its line end, as a message.")
    ] = False,
    *,
    flags: Mapping[str, Any],
    as_json: JsonLines = False,
) -> None:
    """Send a message, or one for each line, and print each id when the broker has confirmed the message.

    Standard input is sent unchanged, including a line end at its end. With --lines, reading stops at the first message
    that fails, and the command waits for the messages before it. Exit codes: 1 a message was refused, or its outcome is
    unknown, as the error says: sending it again may duplicate it; 2 a message is too large, or a header is invalid; 4 a
    person has to act, for example create the topics.
    """
    from thresher.queue import QueueService  # noqa: PLC0415
    from thresher.queue.inspection import reached  # noqa: PLC0415

    problems: list[str] = []
    id_, headers = given_queue_id(queue, problems), _headers(header or (), problems)
    if lines and payload not in {None, "-"}:
        problems.append("--lines: the messages are lines of standard input, so leave PAYLOAD out")
    loaded = load_config(config, with_broker(flags, stack), problems)
    reached(loaded, [loaded.message_topic])
    limits: dict[str, Any] = {"delay": delay, "max_deliveries": own_max_deliveries, "ttl": own_ttl}
    with QueueService(loaded) as service, service.queue(id_).producer() as producer:
        if lines:
            send_lines(producer, sys.stdin.buffer, headers, partial(_print_id, as_json=as_json), **limits)
        else:
            content = sys.stdin.buffer.read() if payload in {None, "-"} else os.fsencode(str(payload))
            _print_id(producer.send(content, headers, **limits), as_json)


def receive(
    queue: QueueId,
    config: ConfigFile = None,
    stack: StackName = None,
    most: Annotated[int, typer.Option("--max", help="Maximum number of messages.", min=1, max=1_000_000)] = 1,
    timeout: Annotated[
        float,
        typer.Option(help="Seconds without a message until the command ends. Joining the group takes some.", min=0),
    ] = 10.0,
    no_ack: Annotated[
        bool, typer.Option("--no-ack", help="Nack the messages at the end, so that the tracker redelivers them.")
    ] = False,
    *,
    flags: Mapping[str, Any],
    as_json: JsonLines = False,
) -> None:
    """Receive messages, print each payload and a line end, and ack the printed messages.

    A message is acked after it was printed and flushed. The acks of the last --max-in-progress of --max messages are
    sent at the end, after the command has left the group, so that it starts no message that it does not print. If it is
    killed before, these messages are redelivered, although they were printed.

    The command ends after --max messages, after --timeout without a message, or on SIGINT or SIGTERM. --json keeps
    every byte: a payload that is no text is in payload_base64. Exit codes: 0 a message came, or a signal ended the
    command; 1 no message came in time, or it failed, as the error says: messages without a confirmed ack are
    redelivered; 2 invalid options or configuration; 4 a person has to act, for example create the topics, or set lost
    offsets.
    """
    from thresher.queue import QueueService  # noqa: PLC0415
    from thresher.queue.inspection import reached  # noqa: PLC0415

    problems: list[str] = []
    id_ = given_queue_id(queue, problems)
    loaded = load_config(config, with_broker(flags, stack), problems)
    at_once = most if no_ack else min(most, loaded.max_in_progress)
    loaded = loaded.model_copy(update={"max_in_progress": at_once})
    reached(loaded, [loaded.message_topic, loaded.marker_topic, loaded.queues_topic, loaded.dead_topic])
    stopped: list[bool] = []
    with stopped_by_signals(lambda: stopped.append(True)), QueueService(loaded) as service:
        received = receive_messages(
            service,
            id_,
            partial(_print_message, as_json=as_json),
            most=most,
            timeout=timeout,
            ack=not no_ack,
            stopped=lambda: bool(stopped),
        )
    if not received and not stopped:
        note(f"nothing came in {timeout:g} s")
        raise typer.Exit(1)


def peek(
    queue: QueueId,
    config: ConfigFile = None,
    stack: StackName = None,
    most: Annotated[int, typer.Option("--max", help="Maximum number of messages.", min=1, max=100_000)] = 10,
    last: Annotated[bool, typer.Option("--last", help="Show the newest messages instead of the oldest.")] = False,
    handed_off: Annotated[
        bool,
        typer.Option("--all", help="Also show messages that consumers have received, if the topic still has them."),
    ] = False,
    *,
    flags: Mapping[str, Any],
    as_json: JsonLines = False,
) -> None:
    """Show messages that wait in a queue, oldest first. No message is received, and nothing changes.

    The command reads the message topic, with the records of all queues, to its end: a large topic takes a while. A
    batch that cannot be decompressed is left out, and a note names its offsets.
    """
    from thresher.queue.inspection import described, time_of  # noqa: PLC0415
    from thresher.queue.inspection import peek as read  # noqa: PLC0415

    problems: list[str] = []
    id_ = given_queue_id(queue, problems)
    loaded = load_config(config, with_broker(flags, stack), problems)
    found = read(loaded, id_, most, last=last, handed_off=handed_off, told=note)
    if as_json:
        for each in found:
            emit_json(described(each.record.message_id, each.record) | {"waiting": each.waiting})
        return
    table(
        f"Messages of {text_of(id_)}, the {'newest' if last else 'oldest'} {most} at most",
        ["id", "sent", "delivery", "bytes", "waiting", "headers", "payload"],
        [
            [
                str(each.record.message_id),
                f"{time_of(each.record.enqueued_at_ms):%Y-%m-%d %H:%M:%S}",
                str(each.record.delivery_count),
                f"{len(each.record.payload):,}",
                "yes" if each.waiting else "no",
                " ".join(f"{name}={'' if value is None else text_of(value)}" for name, value in each.record.headers),
                shorten(text_of(each.record.payload)),
            ]
            for each in found
        ],
        importance=("id", "sent", "waiting", "payload", "bytes", "headers"),
        shortened=("headers", "payload"),
        rest="--json",
    )


def stats(
    queues: Annotated[list[str] | None, typer.Argument(metavar="QUEUE", help="Ids of queues.")] = None,
    config: ConfigFile = None,
    stack: StackName = None,
    *,
    flags: Mapping[str, Any],
    as_json: AsJson = False,
) -> None:
    """Show lag and messages in progress: of the named queues, or of all that ever had a consumer. Nothing changes.

    The lag counts records of the message topic, of all queues, that the queue's consumers have not read yet. A message
    is in progress if the marker topic has its Start and not its End: the topic is read to its end, which may take a
    while. Exit code 4 if the consumer group of a queue may not be read: the other queues are still shown.
    """
    from thresher.queue.inspection import as_json_text, time_of  # noqa: PLC0415
    from thresher.queue.inspection import stats as read  # noqa: PLC0415

    problems: list[str] = []
    ids = [given_queue_id(queue, problems) for queue in queues or ()]
    found = read(load_config(config, with_broker(flags, stack), problems), ids, told=note)
    unread = [each.problem for each in found.queues if each.problem is not None]
    if as_json:
        emit_json(
            {
                "topics": [asdict(topic) for topic in found.topics],
                "queues": [
                    {
                        **as_json_text("queue", each.queue),
                        "members": each.members,
                        "lag_records": each.lag_records,
                        "in_progress": each.in_progress,
                        "delayed": each.delayed,
                        "oldest_started_at": None
                        if each.oldest_started_ms is None
                        else time_of(each.oldest_started_ms).isoformat(),
                        "problem": each.problem,
                    }
                    for each in found.queues
                ],
                "malformed_markers": found.malformed_markers,
            }
        )
        raise typer.Exit(4 if unread else 0)
    now = datetime.now(UTC)
    table(
        "Queues; lag: in records of all queues",
        ["queue", "consumers", "lag", "in progress", "delayed", "oldest"],
        [
            [
                text_of(each.queue),
                "unknown" if each.members is None else str(each.members),
                "unknown" if each.lag_records is None else f"{each.lag_records:,}",
                f"{each.in_progress:,}",
                f"{each.delayed:,}",
                ""
                if each.oldest_started_ms is None
                else f"{max(0.0, (now - time_of(each.oldest_started_ms)).total_seconds()):,.0f} s",
            ]
            for each in found.queues
        ],
        shortened=("queue",),
        rest="--json",
    )
    table(
        "Topics",
        ["topic", "partitions", "records"],
        [[topic.name, str(topic.partitions), f"{topic.records:,}"] for topic in found.topics],
    )
    if found.malformed_markers:
        count = found.malformed_markers
        what = ("record of the marker topic is no marker", "records of the marker topic are no markers")
        result(counted(count, *what))
    for problem in unread:
        note(problem)
    raise typer.Exit(4 if unread else 0)


for _command in (init, send, receive, peek, stats, step_over):
    add_form_command(app, _command.__name__.replace("_", "-"), _command, form)
add_form_command(app, "track", tracking.track, tracking.form)
app.add_typer(dead.app, name="dead")


def _headers(given: Iterable[str], problems: list[str]) -> list[tuple[str, bytes]]:
    pairs = [each.partition("=") for each in given]
    if any(not (name and sign) for name, sign, _ in pairs):
        problems.append("--header: name=value is needed")
    return [(name, os.fsencode(value)) for name, _, value in pairs]


def _print_id(message_id: "MessageId", as_json: bool) -> None:
    if as_json:
        emit_json({"id": str(message_id)})
    else:
        typer.echo(str(message_id))


def _print_message(message: "Message", as_json: bool) -> None:
    """Print a message, through to the reader of standard output."""
    from thresher.queue.inspection import described  # noqa: PLC0415

    if as_json:
        emit_json(described(message.id, message))
    else:
        # A pipe or a file gets the bytes as they are.
        typer.echo(text_of(message.payload) if sys.stdout.isatty() else message.payload)
