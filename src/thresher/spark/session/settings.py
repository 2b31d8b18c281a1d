"""The settings that the engine gives to Spark, and the settings that it refuses, as pure functions.

The user's settings win over ours, whether they come from options, `spark-submit` or `spark-defaults.conf`. A setting
that would break the engine, or let strangers in, is refused by name. Options of Java are visible in process lists, and
those of its variables in logs, so that a secret among them is refused too.
"""

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from thresher.core.errors import shorten
from thresher.core.secrets import SecretText, is_secret, kept_properties, revealed_properties
from thresher.spark.problem import PipelineInvalid, SparkUnfit

_HIGHEST_PORT = 65535
# Our worker daemon, and the environment variable that names the modules it imports.
DAEMON, PRELOAD = "thresher.spark.worker.daemon", "THRESHER_PRELOAD"
# For a JVM that only holds Python workers: a quick start, no performance file, an exit when it is out of memory.
_SMALL_AND_QUICK = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    "-XX:+ExitOnOutOfMemoryError",
)


@dataclass(frozen=True, slots=True)
class _Need:
    """A setting that must have one value: the value, why, and Spark's own default."""

    value: str
    why: str
    default: str = "false"


_SAFE_PATH = "spark.executorEnv.PYTHONSAFEPATH"
_NEEDED = {
    "spark.python.worker.reuse": _Need(
        "false", "a reused worker keeps the connections of the shard before it alive", default="true"
    ),
    "spark.speculation": _Need("false", "Spark would run a second copy of a shard beside the first"),
    "spark.python.use.daemon": _Need(
        "true", "a worker without the daemon is not told when its executor dies", default="true"
    ),
    "spark.python.worker.killOnIdleTimeout": _Need("false", "Spark would kill shards that have nothing to do"),
    "spark.authenticate": _Need(
        "true", "anybody who reaches Spark's ports could read the passwords in its tasks, and kill shards"
    ),
    "spark.python.unix.domain.socket.enabled": _Need(
        "true", "other users of the machine could reach the ports of Python's workers, and end all of them"
    ),
    # Spark starts the worker daemon with `python -m`.
    _SAFE_PATH: _Need("1", "workers would import modules that others put into their working directory", default=""),
}
# On a cluster, tasks and their results cross the network, and spill to the disks of others.
_CLUSTER_NEEDED = {
    "spark.network.crypto.enabled": _Need("true", "tasks carry passwords, and would cross the network unencrypted"),
    "spark.network.crypto.saslFallback": _Need(
        "false", "whoever can change packets could make Spark send tasks unencrypted", default="true"
    ),
    "spark.io.encryption.enabled": _Need("true", "tasks carry passwords, and would be written to disks unencrypted"),
}
_TLS, _PAGE, _KILL_LINKS = "spark.ssl.rpc.enabled", "spark.ui.enabled", "spark.ui.killEnabled"
_SECRET = "spark.authenticate.secret"  # noqa: S105 - the name of a setting
# On a standalone cluster, Spark does not make the secret itself.
_SECRET_NEEDED = (
    f"{_SECRET} is not set: a standalone cluster authenticates by one secret; "
    "set it to that of the cluster's master and workers"
)
_ON_A_COMMAND_LINE = "command lines are visible to every user of the machine"
_PRINTED = "Java prints this variable at every start"
# The variables with options of Java that a JVM of Spark reads, and why they may hold no secret.
_JAVAS_VARIABLES = {
    "SPARK_SUBMIT_OPTS": _ON_A_COMMAND_LINE,
    "SPARK_LAUNCHER_OPTS": _ON_A_COMMAND_LINE,
    "JDK_JAVA_OPTIONS": _PRINTED,
    "JAVA_TOOL_OPTIONS": _PRINTED,
    "_JAVA_OPTIONS": _PRINTED,
}
_OUT_OF_SIGHT = (
    "set a property of Spark in the configuration or in a spark-defaults.conf of mode 0600, and put an option of Java "
    "into a file of mode 0600 that -XX:VMOptionsFile=<file> names"
)
_KILL_LINKS_NEEDED = _Need("false", "whoever reaches Spark's page could kill shards", default="true")


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkOptions:
    """How to start Spark. If the program already has a SparkContext, only `line_port` is used."""

    # As for `spark-submit --master`; by default local, with enough slots for the shards.
    master: str | None = None
    # Properties with the name of a secret are `Secret`.
    conf: Mapping[str, SecretText] = field(default_factory=dict, repr=False)
    # The workers' interpreter: by default the driver's own; `./environment/bin/python` in a packed environment.
    python: str | None = None
    # Modules and archives to ship; an archive may be named with `#directory`.
    py_files: tuple[str, ...] = ()
    archives: tuple[str, ...] = ()
    # Modules that the worker daemon imports before it forks local workers. None may start a thread.
    preload: tuple[str, ...] = ()
    # The port on which the driver listens for lines; 0 takes any free port.
    line_port: int = 0
    # Whether to write a CDS archive into the cache, so that the next start is quicker.
    make_archive: bool = True

    def __post_init__(self) -> None:
        wrong = [
            f"conf {shorten(key)}: give a text, such as 'true' or '8'"
            for key, value in dict(self.conf).items()
            if not _is_text(key) or not _is_text(value)
        ]
        if not _is_port(self.line_port):
            wrong.append(f"line_port {shorten(self.line_port)}: give a number from 0 to {_HIGHEST_PORT}")
        if wrong:
            raise PipelineInvalid(f"Spark's options are invalid: {'; '.join(wrong)}")
        # A frozen dataclass can set its fields in no other way.
        object.__setattr__(self, "conf", kept_properties(self.conf))


def _is_text(value: object) -> bool:
    return isinstance(value, SecretText)


def _is_port(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _HIGHEST_PORT


def settings_of(options: SparkOptions) -> dict[str, str]:
    """Return the options as Spark settings, with their secrets: for the file that a JVM reads."""
    given = revealed_properties(options.conf)
    if options.master:
        given["spark.master"] = options.master
    if options.archives:
        given["spark.archives"] = ",".join(options.archives)
    return given


def is_local(master: str) -> bool:
    """Whether tasks run on the driver's machine, in the driver's own process tree."""
    return master.startswith("local") and not master.startswith("local-cluster")


def default_master(shards: int) -> str:
    """Return a local master with a slot for every shard and two spare ones, for tasks whose end Spark notices late."""
    return f"local[{max(os.cpu_count() or 1, shards + 2)}]"


def master_of(given: Mapping[str, str], shards: int) -> str:
    """Return the given master, or a local one with enough slots."""
    return given.get("spark.master") or default_master(shards)


def context_settings(given: Mapping[str, str], *, name: str, shards: int, submitted: bool) -> dict[str, str]:
    """Return the settings of a new context. Under `spark-submit`, the user decides on the JVM's memory."""
    master = master_of(given, shards)
    needed = {key: need.value for key, need in _needed({"spark.master": master} | dict(given)).items()}
    settings = {
        "spark.app.name": name,
        "spark.master": master,
        _PAGE: "false",
        _KILL_LINKS: "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.task.maxFailures": "1",
        "spark.dynamicAllocation.enabled": "false",
        "spark.python.task.killTimeout": "0s",
        "spark.python.worker.idleTimeoutSeconds": "0",
        "spark.python.worker.faulthandler.enabled": "true",
        **needed,
    }
    if not submitted:
        settings |= {"spark.api.mode": "classic", "spark.driver.memory": "512m"}
    if is_local(master):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    else:
        settings |= {
            "spark.executor.cores": "1",
            # With a spare core, a shard that lost its executor finds another at once.
            "spark.cores.max": str(shards + 1),
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": " ".join(_SMALL_AND_QUICK),
            "spark.executor.heartbeatInterval": "1s",
            "spark.network.timeout": "12s",
            "spark.network.timeoutInterval": "1s",
            "spark.executor.failuresValidityInterval": "1h",
        }
    return settings | dict(given)


def page_address(settings: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variable with which Spark's page, if it is switched on, listens on loopback only.

    The variable is also the default of `spark.driver.host`, so that a driver of a cluster has to name its host. Raises
    `SparkUnfit`.
    """
    if "SPARK_LOCAL_IP" in environment:
        return {}
    local = is_local(settings["spark.master"])
    if not local and settings[_PAGE].strip().lower() == "false":
        return {}
    if not local and "spark.driver.host" not in settings:
        raise SparkUnfit(
            f"{_PAGE} is {settings[_PAGE]}, and Spark's page would listen on all addresses: set spark.driver.host to "
            "the address at which executors reach this driver, so that the page can be on loopback"
        )
    return {"SPARK_LOCAL_IP": "127.0.0.1"}


def java_options(*, log_configuration: Path, temporary: Path, archive: tuple[str, ...], user: str) -> str:
    """Return the options of a JVM that the engine starts: a quick start, little memory, few logs."""
    options = (
        *_SMALL_AND_QUICK,
        f"-Dlog4j2.configurationFile={log_configuration}",
        f"-Djava.io.tmpdir={temporary}",
        *archive,
    )
    # The user's options are already quoted for Spark.
    return " ".join([*map(_quoted, options), user]).strip()


def _quoted(option: str) -> str:
    """Quote an option for Spark, which splits the setting as a shell would."""
    if not re.search(r"[\s\"\\]", option):
        return option
    return '"' + re.sub(r'(["\\])', r"\\\1", option) + '"'


def read_defaults(path: Path) -> dict[str, str]:
    """Read a `spark-defaults.conf`; return nothing if there is none."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    found = (re.match(r"\s*([^#!\s=:][^\s=:]*)\s*[\s=:]\s*(.*?)\s*$", line) for line in lines)
    return {match[1]: match[2] for match in found if match}


def breaking_settings(settings: Mapping[str, str]) -> list[str]:
    """Return a message for each setting that does not suit the engine: its name, the reason and the value to set."""
    needed = _needed(settings)
    if settings.get(_PAGE, "true").strip().lower() != "false":
        needed[_KILL_LINKS] = _KILL_LINKS_NEEDED
    wrong = []
    for key, need in needed.items():
        found = settings.get(key, need.default)
        if found.strip().lower() != need.value:
            shown = found or "empty"
            given = f"is {shown}" if key in settings else f"is not set, and {shown} by default"
            wrong.append(f"{key} {given}: {need.why}; set it to {need.value}")
    if settings.get("spark.master", "").startswith("spark://") and not settings.get(_SECRET):
        wrong.append(_SECRET_NEEDED)
    return wrong + list(_exposed(settings))


def needed_settings(master: str) -> dict[str, str]:
    """Return the settings with which a program's own SparkContext suits the engine, without a cluster's secret."""
    needed = {key: need.value for key, need in _needed({"spark.master": master}).items()}
    return {**needed, _KILL_LINKS: _KILL_LINKS_NEEDED.value}


def _needed(settings: Mapping[str, str]) -> dict[str, _Need]:
    """Return the settings that must have one value with this master, and with Spark's TLS if that is chosen."""
    if is_local(settings.get("spark.master", "local")):
        return dict(_NEEDED)
    tls = settings.get(_TLS, "false").strip().lower() == "true"
    return _NEEDED | {key: need for key, need in _CLUSTER_NEEDED.items() if not (tls and ".crypto." in key)}


def _exposed(settings: Mapping[str, str]) -> Iterator[str]:
    """Yield a message for each option of Java that shows a secret to all users of a machine."""
    for key, value in settings.items():
        if not key.lower().endswith("javaoptions"):
            continue
        for name in _secrets_of_java(value):
            yield f"{key} holds {name}: {_ON_A_COMMAND_LINE}; {_OUT_OF_SIGHT}"


def _secrets_of_java(options: str) -> Iterator[str]:
    """Yield the name of each secret among options of Java."""
    for option in _split(options):
        name, _, given = option.removeprefix("-D").partition("=")
        if option.startswith("-D") and given and is_secret(name):
            yield name


def exposed_variables(environment: Mapping[str, str]) -> list[str]:
    """Return a message for each secret in a variable that Java prints, or that ends up on its command line."""
    return [
        f"{variable} holds {name}: {why}; {_OUT_OF_SIGHT}"
        for variable, why in _JAVAS_VARIABLES.items()
        for name in _secrets_of_java(environment.get(variable, ""))
    ]


def _split(options: str) -> list[str]:
    try:
        return shlex.split(options)
    except ValueError:
        return options.split()


def exposed_arguments(arguments: str) -> list[str]:
    """Return a message for each secret among the arguments of `spark-submit`, which stand on its command line."""
    names: list[str] = []
    for part in _split(arguments):
        name, _, value = part.partition("=")
        # Options of Java are an argument of their own, or the value of a setting.
        names += list(_secrets_of_java(part if name.startswith("-D") else value)) or ([name] if value else [])
    return [
        f"PYSPARK_SUBMIT_ARGS holds {name}: {_ON_A_COMMAND_LINE}; "
        "set it in the configuration, or in spark-defaults.conf"
        for name in names
        if is_secret(name)
    ]


def properties_file(settings: Mapping[str, str]) -> str:
    """Return the settings as the text of a Java properties file."""
    return "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in settings.items())


def _escaped(text: str) -> str:
    """Escape a key or value of a properties file; every unusual character is written by its code."""
    units = text.encode("utf-16-be", errors="surrogatepass")
    codes = [units[at] << 8 | units[at + 1] for at in range(0, len(units), 2)]
    return "".join(chr(code) if _plain(code) else f"\\u{code:04x}" for code in codes)


def _plain(code: int) -> bool:
    return 0x20 < code < 0x7F and chr(code) not in "\\=:#!"
