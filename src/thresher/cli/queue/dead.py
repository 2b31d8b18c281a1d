"""`thresher queue dead`: lists and shows dead letters, and puts them back into their queues or drops them."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thresher.cli.form_command import add_form_command
from thresher.cli.layout.help_page import Commands
from thresher.cli.output import (
    AsJson,
    Yes,
    counted,
    emit_field,
    emit_json,
    require_consent,
    require_terminal,
    result,
    table,
)
from thresher.cli.queue.loading import ConfigFile, form, given_queue_id, load_config, text_of
from thresher.cli.stack.choosing import StackName, with_broker
from thresher.core.errors import InvalidInput, shorten

if TYPE_CHECKING:
    from thresher.queue.configuration import QueueConfig
    from thresher.queue.wire.dead_letter import DeadLetter
    from thresher.tracker.dead import LetterHead

app = Commands(help="List dead letters, put them back into their queues, or drop them.", no_args_is_help=True)

Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Origin ids of messages.")]
OfQueue = Annotated[str | None, typer.Option("--queue", help="Only dead letters of this queue.")]
All = Annotated[bool, typer.Option("--all", help="All dead letters.")]


def list_letters(
    config: ConfigFile = None,
    stack: StackName = None,
    queue: OfQueue = None,
    most: Annotated[int, typer.Option("--max", help="Maximum number of dead letters.", min=1)] = 100,
    *,
    flags: Mapping[str, Any],
    as_json: AsJson = False,
) -> None:
    """List dead letters, oldest first, with the beginning of each payload. 'show' has the whole content."""
    _, found = _found(config, with_broker(flags, stack), queue)
    if as_json:
        emit_json({"letters": [_plain_head(head) for head in found[:most]], "more": len(found) > most})
        return
    table(
        "Dead letters",
        ["id", "queue", "sent", "deliveries", "bytes", "reason", "payload"],
        [
            [
                str(head.id),
                text_of(head.letter.queue),
                _time(head.letter),
                str(head.letter.record.delivery_count),
                f"{head.size if head.payload_bytes is None else head.payload_bytes:,}",
                text_of(head.letter.reason.encode()),
                shorten(text_of(head.preview)),
            ]
            for head in found[:most]
        ],
        importance=("id", "queue", "deliveries", "sent", "reason", "bytes"),
        shortened=("queue", "payload"),
        rest="'thresher queue dead show ID'",
    )
    if len(found) > most:
        result(f"and {len(found) - most:,} more: --max {len(found)} shows them")


def show(
    id_: Annotated[str, typer.Argument(metavar="ID", help="Origin id of the message.")],
    config: ConfigFile = None,
    stack: StackName = None,
    queue: OfQueue = None,
    *,
    flags: Mapping[str, Any],
    as_json: AsJson = False,
) -> None:
    """Show one dead letter with all its content."""
    from thresher.tracker.dead import contents  # noqa: PLC0415

    loaded, heads = _found(config, with_broker(flags, stack), queue)
    found = [head for head in heads if str(head.id) == id_]
    if not found:
        raise InvalidInput(f"no message {id_} is a dead letter")
    for letter in contents(loaded, found):
        whole = _plain(letter)
        if as_json:
            emit_json(whole)
        else:
            for name, value in whole.items():
                emit_field(name, value, width=16)


def replay(
    ids: Ids = None,
    config: ConfigFile = None,
    stack: StackName = None,
    queue: OfQueue = None,
    every: All = False,
    *,
    flags: Mapping[str, Any],
    as_json: AsJson = False,
) -> None:
    """Put dead letters back into their queues, where they are delivered like new messages.

    Each message is sent and its dead letter removed in one transaction. Deliveries are counted from one again, and a
    ttl from the next start.
    """
    from thresher.tracker.dead import replay as change  # noqa: PLC0415

    what = ("message was put back into its queue", "messages were put back into their queues")
    _change(change, what, config, with_broker(flags, stack), ids, queue, every=every, as_json=as_json)


def drop(
    ids: Ids = None,
    config: ConfigFile = None,
    stack: StackName = None,
    queue: OfQueue = None,
    every: All = False,
    yes: Yes = False,
    *,
    flags: Mapping[str, Any],
    as_json: AsJson = False,
) -> None:
    """Remove dead letters for good: their messages were not processed, and never will be.

    Without ids, the command asks first. Messages that become dead letters meanwhile are kept.
    """
    if asks := not ids and (every or queue is not None) and not yes:
        require_terminal(f"queue dead drop {'--all' if every else '--queue'}")
    from thresher.tracker.dead import drop as change  # noqa: PLC0415

    what = ("dead letter was dropped", "dead letters were dropped")
    _change(change, what, config, with_broker(flags, stack), ids, queue, every=every, as_json=as_json, asks=asks)


for _name, _command in (("list", list_letters), ("show", show), ("replay", replay), ("drop", drop)):
    add_form_command(app, _name, _command, form)


def _change(
    change: Callable[..., int],
    what: tuple[str, str],
    config: Any,
    flags: Mapping[str, Any],
    ids: list[str] | None,
    queue: str | None,
    *,
    every: bool,
    as_json: bool,
    asks: bool = False,
) -> None:
    """Change the selected letters. Raises `InvalidInput` if the options select nothing: that never means all."""
    if not ids and queue is None and not every:
        raise InvalidInput("no messages were selected: give ids, --queue or --all")
    problems: list[str] = []
    only = None if queue is None else given_queue_id(queue, problems)
    loaded = load_config(config, flags, problems)
    from thresher.tracker.dead import dead_letters  # noqa: PLC0415

    wanted = set(ids) if ids else None
    if wanted is not None:
        there = {str(head.id) for head in dead_letters(loaded) if only in {None, head.letter.queue}}
        if missing := sorted(wanted - there):
            raise InvalidInput(f"no dead letters: {', '.join(missing[:10])}; nothing was changed")
    elif asks:
        found = [head for head in dead_letters(loaded) if only in {None, head.letter.queue}]
        if found:
            letters = counted(len(found), "dead letter, whose message was", "dead letters, whose messages were")
            require_consent(f"drop {letters} not processed, for good?")
        wanted = {str(head.id) for head in found}
    count = change(
        loaded,
        lambda head: only in {None, head.letter.queue} and (wanted is None or str(head.id) in wanted),
    )
    if as_json:
        emit_json({"messages": count})
    else:
        result(counted(count, *what))


def _found(config: Any, flags: Mapping[str, Any], queue: str | None) -> "tuple[QueueConfig, list[LetterHead]]":
    problems: list[str] = []
    only = None if queue is None else given_queue_id(queue, problems)
    loaded = load_config(config, flags, problems)
    from thresher.tracker.dead import dead_letters  # noqa: PLC0415

    return loaded, [head for head in dead_letters(loaded) if only in {None, head.letter.queue}]


def _plain_head(head: "LetterHead") -> dict[str, Any]:
    """Return a letter without its headers, and with the beginning of its payload."""
    plain = _plain(head.letter)
    del plain["headers"]
    whole = head.payload_bytes is not None and len(head.preview) == head.payload_bytes
    return {**plain, "bytes": head.size if head.payload_bytes is None else head.payload_bytes, "whole_payload": whole}


def _plain(letter: "DeadLetter") -> dict[str, Any]:
    from thresher.queue.inspection import as_json_text, described  # noqa: PLC0415

    return {
        **described(letter.record.origin_id, letter.record),
        **as_json_text("queue", letter.queue),
        "reason": letter.reason,
    }


def _time(letter: "DeadLetter") -> str:
    from thresher.queue.inspection import time_of  # noqa: PLC0415

    return f"{time_of(letter.record.enqueued_at_ms):%Y-%m-%d %H:%M:%S}"
