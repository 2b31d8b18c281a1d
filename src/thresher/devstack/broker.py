"""A real Kafka cluster in KRaft mode on loopback: one node by default, two or three for tests of moving leaders.

Each node is a process that can be stopped, killed, paused, and started again with the same port and data. With two
nodes, only the first is a controller, so that the second can be lost. With three, any one can be lost.
"""

import base64
import json
import signal
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from thresher.core.java import find_java
from thresher.devstack import jars, ports
from thresher.devstack.broker_classes import archive_option
from thresher.devstack.cache import write_whole
from thresher.devstack.certificate import Certificate, certificate_in
from thresher.devstack.problem import BadRequest, PortTaken, StackProblem
from thresher.devstack.server import Server, run_tool
from thresher.kafka.admin import cluster_at

MAIN, CONTROLLER, CLIENTS, SECURE = "MAIN", "CONTROLLER", "CLIENTS", "SECURE"
_START_SECONDS = 120.0
# The time in which a broker stops and Java writes the archive of its classes.
_ARCHIVE_SECONDS = 60.0
_DRAWS = 5
_NODES = (1, 2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """An additional listener behind a proxy: the brokers advertise the proxy's ports instead of their own.

    `advertised_ports` has one port per node. `security` is Kafka's protocol name.
    """

    name: str
    advertised_ports: tuple[int, ...]
    security: str = "PLAINTEXT"


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaOptions:
    """How the cluster is set up.

    `users` (name to password) switches the authorizer on. These users connect with SASL/PLAIN to a listener of their
    own, and may do what ACLs allow; clients of the main listener are administrators. `scram` (name to password) are
    users of a third listener, with SASL_SSL and SCRAM-SHA-512, for which a certificate is made. Without `users`, all do
    everything. `properties` override all others. `port` and those after it, one per node, must be free; `last_ports`
    are used if they are free.
    """

    version: str = "4.2.1"
    nodes: int = 1
    port: int | None = None
    last_ports: tuple[int, ...] = ()
    heap_megabytes: int | None = None
    listeners: tuple[Listener, ...] = ()
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    scram: Mapping[str, str] = field(default_factory=dict, repr=False)
    properties: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.nodes not in _NODES:
            raise BadRequest(f"{self.nodes} Kafka nodes are not possible: choose one, two or three")
        for listener in self.listeners:
            if len(listener.advertised_ports) != self.nodes:
                raise BadRequest(f"listener {listener.name} needs one advertised port for each of {self.nodes} nodes")


class Kafka:
    """The cluster: its nodes' processes, ports and data."""

    def __init__(self, directory: Path, options: KafkaOptions, *, sweep: bool) -> None:
        self._directory = directory
        self.options = options
        self._sweep = sweep
        self._java = find_java()
        # Java's option for the archive of the broker's classes.
        self._archive_option: str | None = None
        self._classpath = ""
        self._cluster_id = ""
        # The certificate of the secure listener, which its clients trust.
        self.certificate: Certificate | None = None
        # The port of each listener and node.
        self.port_by_listener: dict[tuple[str, int], int] = {}
        self.nodes = {
            node: Server(
                f"kafka-{node}",
                directory / f"kafka-{node}",
                stop_signal=signal.SIGTERM,
                end_signal=signal.SIGKILL,
                sweep=sweep,
            )
            for node in _NODES[: options.nodes]
        }

    @property
    def bootstrap(self) -> str:
        """The `bootstrap.servers` of the main listener: without proxy and password."""
        return self.bootstrap_of(MAIN)

    def bootstrap_of(self, listener: str) -> str:
        """Return the `bootstrap.servers` of a listener itself, not of a proxy in front of it."""
        return ",".join(f"{ports.HOST}:{self.port(listener, node)}" for node in self.nodes)

    def port(self, listener: str = MAIN, node: int = 1) -> int:
        """Return the port on which a node listens, and to which a proxy connects."""
        return self.port_by_listener[listener, node]

    def prepare(self, progress: jars.Progress | None = None) -> None:
        """Download missing jars, choose ports, and format the storage unless it is formatted already."""
        if "," in str(self._directory):
            raise BadRequest(f"Kafka cannot store data in {self._directory}: a comma separates directories in log.dirs")
        version = self.options.version
        self._classpath = jars.classpath(version, progress)
        self._archive_option = archive_option(self._java, jars.directory_of(version), version, self._run_once)
        self._format_storage()

    def _run_once(self, directory: Path, option: str) -> bool:
        """Start another broker in an empty directory, stop it, and return whether it ended without being killed."""
        trial = Kafka(directory, KafkaOptions(version=self.options.version), sweep=True)
        trial._classpath = self._classpath
        trial._format_storage()
        trial._archive_option = option
        (server,) = trial.nodes.values()
        try:
            trial.start()
        finally:
            status = server.stop(_ARCHIVE_SECONDS)
        return status in {0, 128 + signal.SIGTERM}

    def _format_storage(self) -> None:
        self._draw_ports()
        self._directory.mkdir(parents=True, exist_ok=True)
        if self.options.scram:
            self.certificate = certificate_in(self._directory / "certificate", ports.HOST, self._java.executable)
        # Stored before any node is formatted: nodes that are formatted after a crash must join the same cluster.
        identity = self._directory / "cluster.id"
        if not identity.exists():
            write_whole(identity, new_cluster_id())
        self._cluster_id = identity.read_text(encoding="utf-8")
        if all((server.directory / "data" / "meta.properties").exists() for server in self.nodes.values()):
            return
        self._write_configuration()
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            for status, output in pool.map(self._format, self.nodes):
                if status != 0:
                    raise StackProblem(f"Kafka could not format its storage:\n{output}")

    def _format(self, node: int) -> tuple[int, str]:
        """Format a node's storage. The accounts' passwords are in a file until then: others can read a command line."""
        directory = self.nodes[node].directory
        accounts = directory / "accounts"
        lines = [
            f"--add-scram\nSCRAM-SHA-512=[name={json.dumps(name)},password={json.dumps(password)}]\n"
            for name, password in self.options.scram.items()
        ]
        write_whole(accounts, "".join(lines))
        added = [f"@{accounts}"] if lines else []
        arguments = ("format", "--ignore-formatted", "--cluster-id", self._cluster_id, *added, "--config")
        try:
            return run_tool(self._command(node, "kafka.tools.StorageTool", *arguments), directory)
        finally:
            accounts.unlink()

    def start(self) -> None:
        """Start all nodes, and return once each knows all others. If another stack took a port, draw other ports."""
        for draw in range(1, _DRAWS + 1):
            self._write_configuration()
            for node in self.nodes:
                self.start_node(node, wait=False)
            try:
                self.wait_until_ready()
            except StackProblem as problem:
                for server in self.nodes.values():
                    server.kill()
                if not isinstance(problem, PortTaken) or self.options.port is not None or draw == _DRAWS:
                    raise
                self._draw_ports()
            else:
                return

    def start_node(self, node: int, *, wait: bool = True) -> None:
        """Start one node with its port and data, and wait until all running nodes form a cluster."""
        self.nodes[node].start(self._command(node, "kafka.Kafka"))
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Wait until every running node knows all running nodes. Raises `StackProblem` if one has ended instead."""
        deadline = time.monotonic() + _START_SECONDS
        expected = {node for node, server in self.nodes.items() if server.running}
        waiting = set(expected)
        while waiting:
            for node in sorted(waiting):
                seen = cluster_at(f"{ports.HOST}:{self.port(MAIN, node)}")
                if not self.nodes[node].running:
                    self._explain_failure(self.nodes[node])
                # If our node could not bind its port, another stack's broker may answer there.
                if seen is not None and seen.cluster_id == self._cluster_id and expected <= seen.brokers:
                    waiting.discard(node)
            if waiting and time.monotonic() > deadline:
                tails = "\n".join(f"{self.nodes[node].name}:\n{self.nodes[node].tail()}" for node in waiting)
                raise StackProblem(f"Kafka's nodes did not form a cluster within {_START_SECONDS:.0f} s\n{tails}")

    def _explain_failure(self, server: Server) -> None:
        tail = server.tail()
        if "BindException" in tail or "Address already in use" in tail or "Address in use" in tail:
            raise PortTaken(f"a port for {server.name} is taken:\n{tail}")
        raise StackProblem(f"{server.name} did not start:\n{tail}")

    def _draw_ports(self) -> None:
        self.port_by_listener = {}
        if self.options.port is not None:
            for node in self.nodes:
                self.port_by_listener[MAIN, node] = ports.require_free(
                    self.options.port + node - 1, f"Kafka node {node}"
                )
        names = [MAIN, CONTROLLER, *(listener.name for listener in self.options.listeners)]
        if self.options.users:
            names.append(CLIENTS)
        if self.options.scram:
            names.append(SECURE)
        avoid = {port for listener in self.options.listeners for port in listener.advertised_ports}
        for node, port in zip(self.nodes, self.options.last_ports, strict=False):
            if (MAIN, node) not in self.port_by_listener:
                self.port_by_listener[MAIN, node] = ports.free_port(
                    avoid | set(self.port_by_listener.values()), wanted=port
                )
        for node in self.nodes:
            for name in names:
                if (name, node) not in self.port_by_listener:
                    self.port_by_listener[name, node] = ports.free_port(avoid | set(self.port_by_listener.values()))

    def _command(self, node: int, main: str, *arguments: str) -> list[str | Path]:
        directory = self.nodes[node].directory
        heap = self.options.heap_megabytes or (512 if self.options.nodes == 1 else 256)
        return [
            self._java.executable,
            *([self._archive_option] if self._archive_option else []),
            f"-Xmx{heap}m",
            "-Xms64m",
            "-XX:TieredStopAtLevel=1",
            "-XX:+UseSerialGC",
            "-XX:+ExitOnOutOfMemoryError",
            f"-Dlog4j2.configurationFile={_logging('log4j2.properties')}",
            f"-Dlog4j.configuration=file:{_logging('log4j.properties')}",
            "-cp",
            self._classpath,
            main,
            *arguments,
            directory / "server.properties",
        ]

    def _write_configuration(self) -> None:
        for node, server in self.nodes.items():
            server.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            lines = [f"{name}={_escape(value)}\n" for name, value in self.properties(node, server.directory).items()]
            (server.directory / "server.properties").write_text("".join(lines), encoding="utf-8")

    def properties(self, node: int, directory: Path) -> dict[str, str]:
        """Return the properties of a node, whose data is below this directory."""
        options = self.options
        controllers = (1,) if options.nodes < 3 else tuple(self.nodes)
        advertised = {MAIN: self.port(MAIN, node)}
        security = {MAIN: "PLAINTEXT", CONTROLLER: "PLAINTEXT"}
        for listener in options.listeners:
            advertised[listener.name] = listener.advertised_ports[node - 1]
            security[listener.name] = listener.security
        if options.users:
            advertised[CLIENTS] = self.port(CLIENTS, node)
            security[CLIENTS] = "SASL_PLAINTEXT"
        if options.scram:
            advertised[SECURE] = self.port(SECURE, node)
            security[SECURE] = "SASL_SSL"
        listening = {name: self.port(name, node) for name in advertised}
        if node in controllers:
            listening[CONTROLLER] = self.port(CONTROLLER, node)
        copies = str(min(options.nodes, 3))
        in_sync = "2" if options.nodes == 3 else "1"
        return {
            "process.roles": "broker,controller" if node in controllers else "broker",
            "node.id": str(node),
            "controller.quorum.voters": ",".join(
                f"{voter}@{ports.HOST}:{self.port(CONTROLLER, voter)}" for voter in controllers
            ),
            "listeners": _addresses(listening),
            "advertised.listeners": _addresses(advertised),
            "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in security.items()),
            "inter.broker.listener.name": MAIN,
            "controller.listener.names": CONTROLLER,
            "log.dirs": str(directory / "data"),
            "default.replication.factor": copies,
            "min.insync.replicas": in_sync,
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": in_sync,
            # Small: few partitions of internal topics, few threads, and no delay of a group's first rebalance.
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.num.partitions": "4",
            "group.initial.rebalance.delay.ms": "0",
            # A killed node can register again once its session has timed out: a short time-out, for tests.
            "broker.session.timeout.ms": "4000",
            "broker.heartbeat.interval.ms": "500",
            "log.cleaner.dedupe.buffer.size": "4194304",
            "num.network.threads": "2",
            "num.io.threads": "4",
            # A controller alone needs no regular records that nothing has happened: a third of an idle broker's work.
            **({"metadata.max.idle.interval.ms": "0"} if options.nodes == 1 else {}),
            **self._authorization(),
            **self._security(),
            **options.properties,
        }

    def _authorization(self) -> dict[str, str]:
        if not self.options.users:
            return {}
        accounts = " ".join(f"user_{name}={json.dumps(password)}" for name, password in self.options.users.items())
        return {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            # Clients of the main listener are anonymous: administrators, and the nodes themselves.
            "super.users": "User:ANONYMOUS",
            "sasl.enabled.mechanisms": "PLAIN",
            f"listener.name.{CLIENTS.lower()}.plain.sasl.jaas.config": (
                f"org.apache.kafka.common.security.plain.PlainLoginModule required {accounts};"
            ),
        }

    def _security(self) -> dict[str, str]:
        if self.certificate is None:
            return {}
        own = f"listener.name.{SECURE.lower()}"
        return {
            f"{own}.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            f"{own}.scram-sha-512.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
            f"{own}.ssl.keystore.type": "PKCS12",
            f"{own}.ssl.keystore.location": str(self.certificate.keystore),
            f"{own}.ssl.keystore.password": self.certificate.password,
            f"{own}.ssl.key.password": self.certificate.password,
        }


def _addresses(listeners: Mapping[str, int]) -> str:
    return ",".join(f"{name}://{ports.HOST}:{port}" for name, port in listeners.items())


def _escape(value: str) -> str:
    """Return a value for a Java properties file: backslashes and characters beyond ASCII as UTF-16 escapes."""
    units = value.encode("utf-16-be")
    return "".join(
        chr(unit) if unit < 128 and unit != ord("\\") else f"\\u{unit:04x}"
        for unit in (int.from_bytes(units[place : place + 2]) for place in range(0, len(units), 2))
    )


def new_cluster_id() -> str:
    """Return a random id as Kafka makes them, without a leading dash, which would look like an option."""
    while True:
        drawn = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not drawn.startswith("-"):
            return drawn


def _logging(name: str) -> str:
    return str(resources.files("thresher.devstack").joinpath(name))
