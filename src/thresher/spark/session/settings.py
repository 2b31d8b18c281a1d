"""The settings that the engine gives to Spark, and the settings that it refuses, as pure functions.

The user's settings win over ours, whether they come from options, `spark-submit` or `spark-defaults.conf`. A setting
that would break the engine is refused by name. Settings are visible in process lists, so secrets must not be in them.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from thresher.core.errors import shorten
from thresher.spark.problem import PipelineInvalid

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
# Spark's own defaults of the settings that the engine needs.
_SPARKS_DEFAULTS = {
    "spark.python.worker.reuse": "true",
    "spark.speculation": "false",
    "spark.python.use.daemon": "true",
    "spark.python.worker.killOnIdleTimeout": "false",
}
_NEEDED = {
    "spark.python.worker.reuse": ("false", "a reused worker keeps the connections of the shard before it alive"),
    "spark.speculation": ("false", "Spark would run a second copy of a shard beside the first"),
    "spark.python.use.daemon": ("true", "a worker without the daemon is not told when its executor dies"),
    "spark.python.worker.killOnIdleTimeout": ("false", "Spark would kill shards that have nothing to do"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkOptions:
    """How to start Spark. If the program already has a SparkContext, only `line_port` is used."""

    # As for `spark-submit --master`; by default local, with enough slots for the shards.
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)
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


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_port(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _HIGHEST_PORT


def settings_of(options: SparkOptions) -> dict[str, str]:
    """Return the options as Spark settings."""
    given = dict(options.conf)
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
    settings = {
        "spark.app.name": name,
        "spark.master": master,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.task.maxFailures": "1",
        "spark.dynamicAllocation.enabled": "false",
        "spark.python.task.killTimeout": "0s",
        "spark.python.worker.idleTimeoutSeconds": "0",
        "spark.python.worker.faulthandler.enabled": "true",
        **{key: needed for key, (needed, _) in _NEEDED.items()},
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
    """Return a message for each setting that would break the engine: its name, the reason and the value to set."""
    wrong = []
    for key, (needed, why) in _NEEDED.items():
        found = settings.get(key, _SPARKS_DEFAULTS[key])
        if found.strip().lower() != needed:
            given = f"is {found}" if key in settings else f"is not set, and {found} by default"
            wrong.append(f"{key} {given}: {why}; set it to {needed}")
    return wrong
