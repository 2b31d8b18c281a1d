"""The settings that the engine gives to Spark, and those that it refuses, as decisions without Spark.

What the user sets, here, under `spark-submit` or in `spark-defaults.conf`, wins over our defaults, except where it
would break a promise: then it is refused by name. Whoever may list processes sees settings: secrets belong elsewhere.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from thresher.core.errors import shorten
from thresher.spark.problem import PipelineInvalid

_HIGHEST_PORT = 65535
# The parent of workers that has imported things, and where it is told which.
DAEMON, PRELOAD = "thresher.spark.worker.daemon", "THRESHER_PRELOAD"
# Any JVM that only holds Python workers: quick to start, no file of its own, gone when it is out of memory.
_SMALL_AND_QUICK = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    "-XX:+ExitOnOutOfMemoryError",
)
# Spark's own defaults of what is looked at below.
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
    """How to get a Spark. All of it is ignored where the program has one already, except the line's port."""

    # As for `--master`; by default as many local threads as the shards need.
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)
    # The interpreter of the workers: by default the driver's own; `./environment/bin/python` with a packed one.
    python: str | None = None
    # Modules and archives to ship; an archive may be named with `#directory`.
    py_files: tuple[str, ...] = ()
    archives: tuple[str, ...] = ()
    # Modules that local workers find imported when they begin. None may start a thread.
    preload: tuple[str, ...] = ()
    # Where tasks call the driver; 0 takes any free port.
    line_port: int = 0
    # Whether to leave an archive of Java's classes in the cache, so that the next start is quicker.
    make_archive: bool = True

    def __post_init__(self) -> None:
        wrong = [
            f"conf {shorten(key)}: give a text, as Spark wants it"
            for key, value in dict(self.conf).items()
            if not _is_text(key) or not _is_text(value)
        ]
        if not _is_port(self.line_port):
            wrong.append(f"line_port {shorten(self.line_port)}: give a number from 0 to {_HIGHEST_PORT}")
        if wrong:
            raise PipelineInvalid(f"Spark's options cannot work: {'; '.join(wrong)}")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_port(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _HIGHEST_PORT


def given_by(options: SparkOptions) -> dict[str, str]:
    """Return what the options say, as settings."""
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
    """Return a local master with a slot for every shard, and some to replace one whose end Spark has not seen yet."""
    return f"local[{max(os.cpu_count() or 1, shards + 2)}]"


def master_of(given: Mapping[str, str], shards: int) -> str:
    """Return the master that was given, or a local one that fits."""
    return given.get("spark.master") or default_master(shards)


def ours(given: Mapping[str, str], *, name: str, shards: int, submitted: bool) -> dict[str, str]:
    """Return the settings of a context that we make; under `spark-submit` the JVM is the user's, and so is its size."""
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
            # One more than needed: a shard that lost its executor finds another at once.
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
    """Return the options of our own JVM: quick to start, small, quiet, and gone when it is out of memory."""
    options = (
        *_SMALL_AND_QUICK,
        f"-Dlog4j2.configurationFile={log_configuration}",
        f"-Djava.io.tmpdir={temporary}",
        *archive,
    )
    # The user's own are written for Spark already.
    return " ".join([*map(_quoted, options), user]).strip()


def _quoted(option: str) -> str:
    """Quote an option of ours for Spark, which splits the setting like a shell would."""
    if not re.search(r"[\s\"\\]", option):
        return option
    return '"' + re.sub(r'(["\\])', r"\\\1", option) + '"'


def read_defaults(path: Path) -> dict[str, str]:
    """Read a `spark-defaults.conf`: what its owner set there comes before what we would."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    found = (re.match(r"\s*([^#!\s=:][^\s=:]*)\s*[\s=:]\s*(.*?)\s*$", line) for line in lines)
    return {match[1]: match[2] for match in found if match}


def breaking(settings: Mapping[str, str]) -> list[str]:
    """Return what in these settings would break the engine, each with its name, the reason and what to set."""
    wrong = []
    for key, (needed, why) in _NEEDED.items():
        found = settings.get(key, _SPARKS_DEFAULTS[key])
        if found.strip().lower() != needed:
            given = f"is {found}" if key in settings else f"is not set, and {found} by default"
            wrong.append(f"{key} {given}: {why}; set it to {needed}")
    return wrong
