import os
import shutil
import signal
import socket
import stat
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)

from tests.processes import command_line, descendants, eventually, open_directory
from thresher.core.directories import cache_home
from thresher.core.throwaway import sweep
from thresher.devstack import ports
from thresher.devstack.broker import CLIENTS, MAIN, Kafka, KafkaOptions, Listener, new_cluster_id
from thresher.devstack.postgres import PostgresOptions
from thresher.devstack.problem import BadRequest, PortTaken, StackProblem
from thresher.devstack.server import Server, run_tool
from thresher.devstack.stack import Stack
from thresher.kafka.admin import Admin


def send(bootstrap: str, topic: str, values: list[str], **config: Any) -> None:
    errors: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "message.timeout.ms": 60_000, **config})
    for value in values:
        producer.produce(topic, value.encode(), on_delivery=lambda error, _: errors.append(error) if error else None)
    assert producer.flush(90) == 0
    if errors:
        raise KafkaException(errors[0])


def receive(bootstrap: str, topic: str, count: int) -> list[str]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "test", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    values: list[str] = []
    deadline = time.monotonic() + 90
    while len(values) < count and time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is not None and not message.error():
            values.append((message.value() or b"").decode())
    consumer.close()
    return values


def test_a_broker_maps_the_archive_of_its_classes(stack: Stack) -> None:
    maps = Path(f"/proc/{stack.kafka.nodes[1].pid}/maps").read_text(encoding="utf-8")
    assert f"{cache_home() / 'kafka'}{os.sep}kafka-4.2.1-" in maps


def test_postgres_is_18_logical_and_on_loopback_only(stack: Stack) -> None:
    with psycopg.connect(stack.postgres.dsn()) as connection:
        row = connection.execute(
            "SELECT current_setting('server_version_num')::int / 10000, current_setting('wal_level'),"
            " current_setting('listen_addresses'), current_setting('unix_socket_directories')"
        ).fetchone()
    assert row == (18, "logical", "127.0.0.1", "")


def test_postgres_asks_for_its_password(stack: Stack) -> None:
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(psycopg.conninfo.make_conninfo(stack.postgres.dsn(), password="wrong"))


def test_the_data_directory_is_closed_to_everybody_else(stack: Stack) -> None:
    data = stack.directory / "postgres" / "data"
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    assert stat.S_IMODE((stack.directory / "postgres" / "password").stat().st_mode) == 0o600
    for directory in (stack.directory, stack.directory / "postgres"):
        assert not directory.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH | stat.S_IRGRP | stat.S_IWGRP)


def test_servers_get_none_of_our_secrets(stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THRESHER_KAFKA_SASL_PASSWORD", "hunter2")
    monkeypatch.setenv("TZ", "UTC")
    ours = Server("sleeper", tmp_path, stop_signal=signal.SIGTERM, end_signal=signal.SIGKILL)
    ours.start(["sleep", "600"])
    try:
        names = environment_names(ours.pid)
    finally:
        ours.kill()
    assert {"PATH", "TZ", "LC_ALL"} <= names
    assert "THRESHER_KAFKA_SASL_PASSWORD" not in names
    status, output = run_tool(["env"], tmp_path, account=stack.postgres.account)
    assert (status, "hunter2" in output) == (0, False)
    # Postgres may run under another account, which can read the environment of its own processes. PG… it sets itself.
    theirs = {name for name in environment_names(stack.postgres.server.pid) if not name.startswith("PG")}
    allowed = {"PATH", "TZ", "TMPDIR", "LD_LIBRARY_PATH"}
    if stack.postgres.account is None:
        allowed |= {"HOME", "JAVA_HOME", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"}
    assert {name for name in theirs if not name.startswith("LC_")} <= allowed


def environment_names(pid: int) -> set[str]:
    return {pair.split("=")[0] for pair in Path(f"/proc/{pid}/environ").read_text().split("\0") if pair}


def test_records_go_through_the_broker(stack: Stack, topic_prefix: str) -> None:
    topic = f"{topic_prefix}records"
    Admin(stack.kafka.bootstrap).create_topic(topic, partitions=3)
    send(stack.kafka.bootstrap, topic, ["a", "b", "c"])
    assert sorted(receive(stack.kafka.bootstrap, topic, 3)) == ["a", "b", "c"]
    (size,) = Admin(stack.kafka.bootstrap).topics(topic_prefix)
    assert (size.partitions, size.records) == (3, 3)


@pytest.mark.soak
def test_two_stacks_at_once_do_not_collide() -> None:
    def small_test(number: int) -> tuple[int, str, set[str]]:
        with Stack() as stack:
            with psycopg.connect(stack.postgres.dsn(), autocommit=True) as connection:
                connection.execute(f"CREATE TABLE only_{number} ()".encode())
                tables = {
                    name for (name,) in connection.execute("SELECT relname FROM pg_class WHERE relname ~ '^only_'")
                }
            Admin(stack.kafka.bootstrap).create_topic(f"only-{number}")
            send(stack.kafka.bootstrap, f"only-{number}", ["x"])
            topics = {topic.name for topic in Admin(stack.kafka.bootstrap).topics()}
            return stack.postgres.port, stack.kafka.bootstrap, tables | topics

    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(small_test, (1, 2))
    assert one[2] == {"only_1", "only-1"}
    assert two[2] == {"only_2", "only-2"}
    assert one[0] != two[0]
    assert one[1] != two[1]


def test_killed_servers_come_back_on_their_ports_with_their_data(stack: Stack, dsn: str, topic_prefix: str) -> None:
    bootstrap, topic = stack.kafka.bootstrap, f"{topic_prefix}kept"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS n")
    Admin(bootstrap).create_topic(topic)
    send(bootstrap, topic, ["before"])
    at = stack.postgres.dsn()
    stack.postgres.server.kill()
    stack.kafka.nodes[1].kill()
    try:
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(dsn)
        with pytest.raises(StackProblem, match="not running"):
            _ = stack.postgres.server.pid
    finally:
        stack.postgres.start()
        stack.kafka.start_node(1)
    assert (stack.postgres.dsn(), stack.kafka.bootstrap) == (at, bootstrap)
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT n FROM kept").fetchone() == (7,)
    send(bootstrap, topic, ["after"])
    assert receive(bootstrap, topic, 2) == ["before", "after"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Stack]:
    with Stack(kafka=KafkaOptions(nodes=3)) as running:
        yield running


@pytest.mark.soak
def test_a_killed_node_of_three_loses_no_acked_record(cluster: Stack) -> None:
    kafka = cluster.kafka
    assert Admin(kafka.bootstrap).cluster().brokers == {1, 2, 3}
    Admin(kafka.bootstrap).create_topic("moving", partitions=3)
    send(kafka.bootstrap, "moving", [str(n) for n in range(30)])

    def leaders() -> set[int]:
        client = AdminClient({"bootstrap.servers": kafka.bootstrap})
        return {each.leader for each in client.list_topics("moving", timeout=10).topics["moving"].partitions.values()}

    victim = min(leaders())
    kafka.nodes[victim].kill()
    eventually(lambda: victim not in leaders() and -1 not in leaders(), 60)
    send(kafka.bootstrap, "moving", [str(n) for n in range(30, 60)])
    assert sorted(receive(kafka.bootstrap, "moving", 60), key=int) == [str(n) for n in range(60)]
    kafka.start_node(victim)
    assert Admin(kafka.bootstrap).cluster().brokers == {1, 2, 3}
    # One node is started again while another one stays stopped.
    for node in (2, 3):
        kafka.nodes[node].kill()
    kafka.start_node(2)
    assert kafka.nodes[1].running
    assert not kafka.nodes[3].running
    kafka.start_node(3)


def forward(listener: socket.socket, target: int, seen: list[int]) -> None:
    """Accept connections and forward their bytes, until the test closes the listener."""

    def pump(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                seen[0] += len(data)
                sink.sendall(data)
        except OSError:
            pass
        finally:
            source.close()
            sink.close()

    while True:
        try:
            client, _ = listener.accept()
            server = socket.create_connection(("127.0.0.1", target))
        except OSError:
            return
        for pair in ((client, server), (server, client)):
            threading.Thread(target=pump, args=pair, daemon=True).start()


@pytest.mark.soak
def test_a_listener_is_advertised_under_its_proxy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy_port = proxy.getsockname()[1]
        listener = Listener(name="PROXIED", advertised_ports=(proxy_port,))
        options = KafkaOptions(
            listeners=(listener,),
            users={"alice": 'se"cret', "bob": "b"},
            properties={"auto.create.topics.enable": "false", "message.max.bytes": "5000"},
        )
        with Stack(kafka=options) as stack:
            seen = [0]
            threading.Thread(target=forward, args=(proxy, stack.kafka.port("PROXIED"), seen), daemon=True).start()
            Admin(stack.kafka.bootstrap).create_topic("proxied")
            send(f"127.0.0.1:{proxy_port}", "proxied", ["x" * 1000])
            # The metadata names the advertised port: the record itself went through the proxy.
            assert seen[0] > 1000
            own_properties_apply(stack)
            acls_decide(stack)


def own_properties_apply(stack: Stack) -> None:
    client = AdminClient({"bootstrap.servers": stack.kafka.bootstrap})
    (future,) = client.describe_configs([ConfigResource(ConfigResource.Type.BROKER, "1")]).values()
    config = {name: entry.value for name, entry in future.result().items()}
    assert (config["auto.create.topics.enable"], config["message.max.bytes"]) == ("false", "5000")


def acls_decide(stack: Stack) -> None:
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "alice"}
    bootstrap = stack.kafka.bootstrap_of(CLIENTS)
    with pytest.raises(KafkaException) as caught:
        send(bootstrap, "proxied", ["no"], **login, **{"sasl.password": 'se"cret'})
    assert caught.value.args[0].code() in {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._MSG_TIMED_OUT}
    allow = (AclOperation.ALL, AclPermissionType.ALLOW)
    grants = [
        AclBinding(ResourceType.TOPIC, "proxied", ResourcePatternType.LITERAL, "User:alice", "*", *allow),
        AclBinding(ResourceType.BROKER, "kafka-cluster", ResourcePatternType.LITERAL, "User:alice", "*", *allow),
    ]
    administrator = AdminClient({"bootstrap.servers": stack.kafka.bootstrap})
    for future in administrator.create_acls(grants).values():
        future.result()
    send(bootstrap, "proxied", ["yes"], **login, **{"sasl.password": 'se"cret'})
    with pytest.raises(KafkaException):
        Admin(bootstrap, {**login, "sasl.password": "wrong", "log_level": "0"}).cluster(3)


@pytest.mark.soak
def test_the_older_broker_for_measuring_peers_starts() -> None:
    with Stack(kafka=KafkaOptions(version="3.9.1")) as stack:
        Admin(stack.kafka.bootstrap).create_topic("old")
        send(stack.kafka.bootstrap, "old", ["x"])
        assert receive(stack.kafka.bootstrap, "old", 1) == ["x"]


@pytest.mark.parametrize(
    "options",
    [{"postgres": PostgresOptions(port=1)}, {"kafka": KafkaOptions(port=1)}],
    ids=["postgres", "kafka"],
)
def test_a_port_in_use_is_named_and_nothing_remains(options: dict[str, Any], stack: Stack) -> None:
    taken = stack.postgres.port
    ((name, given),) = options.items()
    before = set(stack.directory.parent.glob("thresher-stack-*"))
    with pytest.raises(PortTaken, match=f"port {taken} for"):
        Stack(**{name: type(given)(port=taken)}).start()
    assert set(stack.directory.parent.glob("thresher-stack-*")) == before


@pytest.fixture(scope="module")
def odd_stack(stack: Stack) -> Iterator[Stack]:
    """A stack in a directory with an odd name, whose first ports another program took before its servers did."""
    root = open_directory()
    place = root / "späße 'q' \\ b"
    place.mkdir()
    place.chmod(0o711)
    genuine = ports.free_port
    draws = iter([stack.postgres.port, stack.kafka.port()] * 2)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tempfile, "tempdir", str(place))
        odd = Stack()
        patched.setattr(ports, "free_port", lambda avoid=(), **_: next(draws, None) or genuine(avoid))
        odd.start()
    yield odd
    odd.stop()
    assert list(place.iterdir()) == []
    shutil.rmtree(root)


def test_ports_lost_to_another_program_are_drawn_again(stack: Stack, odd_stack: Stack) -> None:
    taken = [stack.postgres.port, stack.kafka.port()]
    assert odd_stack.postgres.port not in taken
    assert odd_stack.kafka.port() not in taken
    Admin(odd_stack.kafka.bootstrap).create_topic("only-here")
    assert "only-here" not in {topic.name for topic in Admin(stack.kafka.bootstrap).topics()}


def test_a_foreign_broker_on_the_port_is_not_ours(stack: Stack) -> None:
    # Our broker cannot get the port, and a foreign broker answers on it with the same node id.
    other = Stack(kafka=KafkaOptions(port=1))
    other.kafka.options = KafkaOptions()
    try:
        other.kafka.prepare()
        other.kafka.port_by_listener[MAIN, 1] = stack.kafka.port()
        other.kafka.options = KafkaOptions(port=stack.kafka.port())
        with pytest.raises(PortTaken):
            other.kafka.start()
    finally:
        other.stop()


def test_data_may_be_in_any_directory_without_a_comma(odd_stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    Admin(odd_stack.kafka.bootstrap).create_topic("x")
    eventually((odd_stack.directory / "kafka-1" / "data" / "x-0").is_dir, 60)
    root = open_directory()
    place = root / "a,b"
    place.mkdir()
    place.chmod(0o711)
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    with pytest.raises(BadRequest, match="a comma"):
        Stack().start()
    assert list(place.iterdir()) == []
    shutil.rmtree(root)


def test_foreign_files_in_the_temporary_directory_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    root = open_directory()
    monkeypatch.setattr(tempfile, "tempdir", str(root))
    (root / "thresher-stack-loop").symlink_to("thresher-stack-loop")
    os.mkfifo(root / "thresher-stack-pipe")
    os.utime(root / "thresher-stack-pipe", (0, 0))
    sweep("thresher-stack-")
    assert len(list(root.iterdir())) == 2
    shutil.rmtree(root)


def test_nobody_else_reads_the_brokers_passwords(stack: Stack) -> None:
    assert stat.S_IMODE((stack.directory / "kafka-1").stat().st_mode) == 0o700
    assert stat.S_IMODE((stack.directory / "postgres" / "log").stat().st_mode) == 0o600


def test_no_command_line_that_formats_a_broker_holds_a_password(tmp_path: Path) -> None:
    password, seen = f'a "{uuid.uuid4()}"\n', set[bytes]()
    unformatted = Kafka(tmp_path / "kafka", KafkaOptions(scram={"alice": password}), sweep=True)
    with ThreadPoolExecutor(1) as other:
        prepared = other.submit(unformatted.prepare)
        while not prepared.done():
            seen |= {command_line(pid) for pid in descendants(os.getpid())}
            time.sleep(0.02)
        prepared.result()
    assert [line for line in seen if b"StorageTool" in line and b"--config" in line], "looked at too late"
    assert not [line for line in seen if password[3:30].encode() in line]
    assert password[3:30] not in " ".join(path.read_text() for path in (tmp_path / "kafka" / "kafka-1").glob("a*"))


def test_a_cluster_id_never_looks_like_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = iter([uuid.UUID(bytes=b"\xf8" + bytes(15)), uuid.UUID(int=1)])
    monkeypatch.setattr(uuid, "uuid4", lambda: next(ids))
    assert not new_cluster_id().startswith("-")


def test_more_nodes_than_three_are_refused() -> None:
    with pytest.raises(StackProblem, match="one, two or three"):
        KafkaOptions(nodes=4)
    with pytest.raises(StackProblem, match="one advertised port for each"):
        KafkaOptions(nodes=2, listeners=(Listener(name="P", advertised_ports=(1,)),))


def test_a_setting_that_postgres_refuses_is_explained() -> None:
    stack = Stack(postgres=PostgresOptions(settings={"no_such_thing": "1"}))
    try:
        # Without the broker, which would start in vain.
        stack.postgres.prepare()
        with pytest.raises(StackProblem, match="unrecognized configuration parameter"):
            stack.postgres.start()
    finally:
        stack.stop()


def test_leftovers_of_a_dead_owner_are_removed_later(stack: Stack) -> None:
    stale, young = (stack.directory.parent / f"thresher-stack-{name}" for name in ("stale", "young"))
    for directory in (stale, young):
        directory.mkdir(exist_ok=True)
        (directory / "kafka-1").mkdir(exist_ok=True)
    os.utime(stale, (0, 0))
    os.utime(stack.directory, (0, 0))
    sweep("thresher-stack-")
    assert not stale.exists()
    assert young.exists()
    assert stack.directory.exists(), "a stack that is in use was swept"
    (young / "kafka-1").rmdir()
    young.rmdir()
