"""The settings that the engine gives to Spark, and those that it refuses, as decisions without Spark.

What the user sets wins over our defaults, except where it would break a promise: then it is refused by name.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

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
    # Where tasks call the driver; 0 takes any free port.
    line_port: int = 0
    # Whether to leave an archive of Java's classes in the cache, so that the next start is quicker.
    make_archive: bool = True


def is_local(master: str) -> bool:
    """Whether tasks run on the driver's machine, in the driver's own process tree."""
    return master.startswith("local") and not master.startswith("local-cluster")


def default_master(shards: int) -> str:
    """Return a local master with a slot for every shard, and some to replace one whose end Spark has not seen yet."""
    return f"local[{max(os.cpu_count() or 1, shards + 2)}]"


def ours(options: SparkOptions, *, name: str, shards: int, master: str, submitted: bool) -> dict[str, str]:
    """Return the settings of a context that we make; under `spark-submit` the JVM is the user's, and so is its size."""
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
            "spark.executor.extraJavaOptions": (
                "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -XX:+ExitOnOutOfMemoryError"
            ),
            "spark.executor.heartbeatInterval": "1s",
            "spark.network.timeout": "12s",
            "spark.network.timeoutInterval": "1s",
            "spark.executor.failuresValidityInterval": "1h",
        }
    if options.archives:
        settings["spark.archives"] = ",".join(options.archives)
    return settings | dict(options.conf)


def java_options(*, log_configuration: Path, temporary: Path, archive: tuple[str, ...], user: str) -> str:
    """Return the options of our own JVM: quick to start, small, quiet, and gone when it is out of memory."""
    options = (
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        "-XX:-UsePerfData",
        "-XX:+ExitOnOutOfMemoryError",
        f"-Dlog4j2.configurationFile={log_configuration}",
        f"-Djava.io.tmpdir={temporary}",
        *archive,
        user,
    )
    return " ".join(_quoted(option) for option in options if option)


def _quoted(option: str) -> str:
    # Spark splits the setting like a shell would; the user's own part is already written for that.
    return f'"{option}"' if " " in option and option.startswith(("-Dlog4j2", "-Djava.io", "-XX:Shared")) else option


def breaking(settings: Mapping[str, str]) -> list[str]:
    """Return what in these settings would break the engine, each with its name, the reason and what to set."""
    wrong = []
    for key, (needed, why) in _NEEDED.items():
        found = settings.get(key, _SPARKS_DEFAULTS[key])
        if found.strip().lower() != needed:
            given = f"is {found}" if key in settings else f"is not set, and {found} by default"
            wrong.append(f"{key} {given}: {why}; set it to {needed}")
    return wrong
