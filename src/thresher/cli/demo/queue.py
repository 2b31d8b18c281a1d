"""`thresher demo queue`: sends messages to three consumers, kills one consumer and the tracker, and gives a verdict.

A message is done when its consumer has printed and acked it. The tracker redelivers the messages that the killed
consumer had started and not acked, although the tracker was killed too.
"""

import contextlib
import json
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from rich.live import Live
from rich.panel import Panel
from rich.table import Table

from thresher.cli.demo.process import DemoProcess
from thresher.cli.output import complain, err, fetching, out, table
from thresher.cli.status import RelayUnreachable, ask
from thresher.core.errors import ThresherError
from thresher.core.signals import stopped_by_signals
from thresher.devstack.ports import free_port
from thresher.devstack.stack import Stack
from thresher.queue import QueueService
from thresher.queue.configuration import configured
from thresher.queue.topics import init_topics

_QUEUE, _CONSUMERS, _WORKER = "demo", 3, "thresher.cli.demo.worker"
# Messages sent per second, enough to keep all consumers busy.
_PER_SECOND = 700.0
# The shares of processed messages at which a consumer, then the tracker, is killed.
_KILL_CONSUMER_SHARE, _KILL_TRACKER_SHARE = 0.4, 0.6
_LOOK_SECONDS, _REST_SECONDS = 0.1, 90.0
# How often a consumer is paused in the hope that it is at work, and how long it runs between two tries.
_TRIES, _SLICE_SECONDS = 50, 0.01
# Short, so that the demo does not take long.
_REDELIVERY_MS = 4_000


@dataclass
class Scene:
    """The state of the demo."""

    messages: int
    sent: int = 0
    # How often each message was processed, by its payload; and the number of deliveries after the first.
    processed: Counter[str] = field(default_factory=Counter)
    again: int = 0
    # The message that each consumer has started and not yet printed as done, by the consumer's index.
    working: dict[int, str] = field(default_factory=dict)
    consumers_killed: int = 0
    trackers_killed: int = 0
    # Messages that killed trackers had redelivered.
    redelivered_before: int = 0
    status: dict[str, Any] = field(default_factory=dict)
    doing: str = "starting the tracker on Spark"

    @property
    def redelivered(self) -> int:
        """How many messages were redelivered, as far as the trackers' status or the consumers' output shows."""
        return max(self.again, self.redelivered_before + int(self.status.get("redelivered", 0)))

    @property
    def done(self) -> bool:
        """Whether every message was processed."""
        return len(self.processed) >= self.messages


def show(messages: int) -> bool:
    """Start all processes, kill some, give a verdict, and clean up. Returns False if the verdict is not clean."""
    with stopped_by_signals(_interrupt):
        return _show(messages)


def _interrupt() -> None:
    raise KeyboardInterrupt


def _show(messages: int) -> bool:
    with fetching() as progress, err.status("starting Kafka"):
        stack = Stack(progress=progress)
        stack.start()
    try:
        out.print(f"Kafka on {stack.kafka.bootstrap} is up")
        with tempfile.TemporaryDirectory(prefix="thresher-demo-") as directory:
            return _play(stack.kafka.bootstrap, messages, Path(directory))
    finally:
        stack.stop()


def _play(bootstrap: str, messages: int, directory: Path) -> bool:
    keys = {
        "bootstrap-servers": bootstrap,
        "message-topic": "messages",
        "marker-topic": "markers",
        "redelivery-timeout": _REDELIVERY_MS,
        # A member that was killed is removed after this time: the least that a broker allows.
        "consumer": {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 500},
    }
    config = configured(keys)
    init_topics(config)
    file = directory / "queues.yaml"
    file.write_text(yaml.safe_dump(keys))
    scene = Scene(messages=messages)
    at = f"127.0.0.1:{free_port()}"
    track = ["queue", "track", "-c", str(file), "--status", at, "--election", "none"]
    tracker = DemoProcess("tracker", track, directory / "tracker.log")
    consumers = [
        DemoProcess("consumer", [str(file), _QUEUE], directory / f"consumer-{number}.log", module=_WORKER, output=True)
        for number in range(_CONSUMERS)
    ]
    with contextlib.ExitStack() as entered, Live(_panel(scene), console=err) as live:
        for process in (tracker, *consumers):
            entered.enter_context(process)
        tracker.start()
        _await_tracker(tracker, at, scene, live)
        for place, consumer in enumerate(consumers):
            consumer.start()
            entered.enter_context(_reading(consumer, place, scene))
        entered.enter_context(_sending(config, scene))
        _watch(tracker, consumers, at, scene, live)
        for process in (*consumers, tracker):
            process.stop()
    return _judge(scene)


def _await_tracker(tracker: DemoProcess, at: str, scene: Scene, live: Live) -> None:
    deadline = time.monotonic() + _REST_SECONDS
    while not scene.status.get("ready"):
        if time.monotonic() > deadline:
            raise ThresherError(f"the tracker is not ready after {_REST_SECONDS:g} s: {scene.status.get('reason')}")
        time.sleep(_LOOK_SECONDS)
        _look(tracker, at, scene, live)
    scene.doing = "sending"


def _look(tracker: DemoProcess, at: str, scene: Scene, live: Live) -> None:
    tracker.require_alive()
    with contextlib.suppress(RelayUnreachable):
        scene.status = ask(at)
    live.update(_panel(scene))


def _watch(tracker: DemoProcess, consumers: list[DemoProcess], at: str, scene: Scene, live: Live) -> None:
    """Wait until all messages were processed; kill a consumer, then the tracker, meanwhile.

    The killed consumer is removed from the list.
    """
    deadline = time.monotonic() + scene.messages / _PER_SECOND + _REST_SECONDS
    while not (scene.done and scene.redelivered) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
        _look(tracker, at, scene, live)
        for consumer in consumers:
            consumer.require_alive()
        if not scene.consumers_killed and len(scene.processed) >= _KILL_CONSUMER_SHARE * scene.messages:
            _kill_one_at_work(consumers, scene)
        elif not scene.trackers_killed and len(scene.processed) >= _KILL_TRACKER_SHARE * scene.messages:
            tracker.kill()
            scene.trackers_killed += 1
            scene.redelivered_before, scene.status = scene.redelivered, {}
            scene.doing = "the tracker was killed with -9, and started again"
            tracker.start()
        elif scene.trackers_killed and scene.status.get("ready"):
            scene.doing = "tracking again"
    # Time for the last acks.
    time.sleep(_LOOK_SECONDS)
    _look(tracker, at, scene, live)


def _kill_one_at_work(consumers: list[DemoProcess], scene: Scene) -> None:
    """Kill a consumer while it works on a message, so that the message is redelivered.

    The consumer is paused first, so that it cannot ack while its output is read. Its partitions are assigned to it
    alone, so that messages wait for it until a pause meets it at work.
    """
    for _ in range(_TRIES):
        for place in list(scene.working):
            consumers[place].pause()
            time.sleep(_LOOK_SECONDS)
            if place in scene.working:
                consumers.pop(place).kill()
                scene.consumers_killed += 1
                scene.doing = "a consumer was killed with -9"
                return
            consumers[place].go_on()
        time.sleep(_SLICE_SECONDS)


@contextlib.contextmanager
def _reading(consumer: DemoProcess, place: int, scene: Scene) -> Iterator[None]:
    """Record what a consumer prints."""

    def read() -> None:
        for line in (consumer.process and consumer.process.stdout) or ():
            # The last line of a killed consumer may be incomplete.
            with contextlib.suppress(ValueError):
                message = json.loads(line)
                if "started" in message:
                    scene.working[place] = message["started"]
                    continue
                scene.working.pop(place, None)
                scene.processed[message["payload"]] += 1
                scene.again += message["delivery_count"] > 1

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    yield
    reader.join(5.0)


@contextlib.contextmanager
def _sending(config: Any, scene: Scene) -> Iterator[None]:
    """Send the messages at a steady rate."""

    def send() -> None:
        with QueueService(config) as service, service.queue(_QUEUE).producer() as producer:
            began = time.monotonic()
            for number in range(scene.messages):
                time.sleep(max(0.0, began + number / _PER_SECOND - time.monotonic()))
                producer.send_async(f"message {number}", callback=lambda _: _count(scene))

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    yield
    sender.join(30.0)


def _count(scene: Scene) -> None:
    scene.sent += 1


def _panel(scene: Scene) -> Panel:
    grid = Table.grid(padding=(0, 3))
    in_progress = scene.status.get("in_progress")
    pairs = [
        ("sent", f"{scene.sent:,}"),
        ("queued", f"{max(0, scene.sent - len(scene.processed) - int(in_progress or 0)):,}"),
        ("in progress", "?" if in_progress is None else f"{in_progress:,.0f}"),
        ("redelivered", f"{scene.redelivered:,}"),
        ("done", f"{len(scene.processed):,}"),
        ("kills", f"{scene.consumers_killed + scene.trackers_killed}"),
    ]
    grid.add_row(*(f"[bold]{name}[/]" for name, _ in pairs))
    grid.add_row(*(value for _, value in pairs))
    return Panel(
        grid, title=f"producer → Kafka → {_CONSUMERS} consumers, tracker on Spark: {scene.doing}", title_align="left"
    )


def _judge(scene: Scene) -> bool:
    repeated = sum(count - 1 for count in scene.processed.values())
    table(
        "What happened",
        ["sent", "processed", "redelivered", "again", "consumer kills", "tracker kills"],
        [
            [
                f"{scene.sent:,}",
                f"{len(scene.processed):,}",
                f"{scene.redelivered:,}",
                f"{repeated:,}",
                str(scene.consumers_killed),
                str(scene.trackers_killed),
            ]
        ],
    )
    missing = [
        what
        for what, there in (
            ("no consumer was killed", scene.consumers_killed > 0),
            ("the tracker was not killed", scene.trackers_killed > 0),
            ("too few messages were sent", scene.sent == scene.messages),
            ("nothing was redelivered", scene.redelivered > 0),
        )
        if not there
    ]
    for what in missing:
        complain(f"{what}: this proves nothing")
    lost = scene.messages - len(scene.processed)
    good = not lost and not missing
    out.print(f"[{'green' if good else 'red'}]{lost} messages were not processed[/]")
    return good
