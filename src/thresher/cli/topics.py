"""`thresher topics`: lists the topics of an outbox that relays share by topic locks, or splits one into parts."""

import os
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from thresher.cli.layout.help_page import Commands
from thresher.cli.options import name_database
from thresher.cli.output import AsJson, emit_json, hide, note, result, table
from thresher.cli.stack.choosing import StackName, with_stack

if TYPE_CHECKING:
    from thresher.relay.settings import Settings

app = Commands(
    help="List the topics of relays that share an outbox by topic locks, or split a topic.", no_args_is_help=True
)

File = Annotated[Path | None, typer.Option("--config", "-c", envvar="THRESHER_CONFIG", help="The relay's YAML file.")]
_MOST_TOPICS = 1_000


@app.command("list")
def list_topics(config: File = None, stack: StackName = None, as_json: AsJson = False) -> None:
    """List topics that have pending rows, are locked, or are paused after an error; the longest wait first."""
    from thresher.delivery.names import visitor  # noqa: PLC0415
    from thresher.relay.store import driver_store_of  # noqa: PLC0415

    settings = _settings(config, stack)
    with closing(driver_store_of(settings).session(visitor(settings.name), locate=True)) as session:
        locks = session.topic_locks()
        locks.create()
        found = locks.figures(_MOST_TOPICS)
    if as_json:
        emit_json({"topics": [asdict(each) for each in found]})
        return
    table(
        "Topics",
        ["topic", "parts", "pending", "waits", "locked", "errored", "retries", "reason"],
        [
            [
                each.topic,
                str(each.parts),
                f"{each.pending:,}" if each.exact else f"over {each.pending - 1:,}",
                "" if each.oldest_seconds is None else f"{each.oldest_seconds:.1f} s",
                str(each.locked),
                str(each.errored),
                str(each.retries),
                each.reason or "",
            ]
            for each in found
        ],
        importance=("topic", "pending", "waits", "locked", "errored"),
        shortened=("topic",),
        rest="--json",
    )


@app.command()
def split(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    parts: Annotated[int, typer.Argument(help="Number of parts, by key.", min=1, max=64)],
    config: File = None,
    stack: StackName = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the topic's locks.", min=0)] = 60.0,
) -> None:
    """Change the number of parts in which a topic is locked, for all relays of the outbox.

    The command takes the topic's locks and settles published rows before it changes the number. Then relays that are
    configured with the old number end with an error: change split_topics in their configuration and restart them.
    """
    from thresher.core.errors import InvalidInput, shorten  # noqa: PLC0415
    from thresher.core.topic_name import is_topic  # noqa: PLC0415
    from thresher.relay.topic_lock.split import change_split  # noqa: PLC0415

    if not is_topic(topic):
        raise InvalidInput(f"{shorten(topic)} cannot be a topic's name")
    before = change_split(_settings(config, stack), topic, parts, wait_seconds=wait)
    was = f", and was in {before}" if before not in {0, parts} else ""
    result(f"topic {topic} is locked in {parts} part{'s' * (parts > 1)}{was}")


def _settings(config: Path | None, stack: str | None) -> "Settings":
    from thresher.core.errors import InvalidInput  # noqa: PLC0415
    from thresher.harvest.configuration import load  # noqa: PLC0415
    from thresher.relay.settings import Coordination  # noqa: PLC0415

    loaded = load(config, with_stack({}, stack), os.environ, warn=note)
    hide(loaded.secrets.mask)
    if loaded.settings.coordination is not Coordination.TOPIC_LOCK:
        raise InvalidInput("this relay has a leader: only a relay with 'coordination: topic-lock' has topic locks")
    name_database(loaded.settings.data_source)
    return loaded.settings
