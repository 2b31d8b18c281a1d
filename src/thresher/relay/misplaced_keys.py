"""Where a file's key belongs that `Settings` has not: to the election, to Spark, to `Harvest`, or to no program."""

from dataclasses import fields

from thresher.election.settings import ElectionSettings

_OF_ELECTION = frozenset(each.name for each in fields(ElectionSettings)) - {"kind", "grace_seconds"}
_OF_SPARK = {
    "spark": "conf",
    "spark_master": "master",
    "spark_python": "python",
    "spark_archives": "archives",
    "spark_py_files": "py_files",
}
_OF_HARVEST = frozenset({"election", "logger", "metrics_seconds", "step_down_seconds", "policy"})
_FOR_COMMANDS = {
    "status": "it is of 'thresher run' alone, which shows pages: leave it out",
    "status_hosts": "it is of 'thresher run' alone, which shows pages: leave it out",
    "log_format": "it is of 'thresher run' alone: a program sets up its own logging, or gives Harvest(…, logger=…)",
    "log_level": "it is of 'thresher run' alone: a program sets up its own logging, or gives Harvest(…, logger=…)",
}
_OTHERWISE = {
    "bootstrap": "it is a property of Kafka's clients: kafka={'bootstrap.servers': …}",
    "bootstrap_servers": "it is a property of Kafka's clients: kafka={'bootstrap.servers': …}",
    "ds": "in a program it is data_source=…",
    "back_off_seconds": "it belongs to the policy: Harvest(settings, policy=replace(POLICY, back_off_seconds=…))",
}


def belongs(key: str) -> str | None:
    """Return what to say of a key that has its place elsewhere; None of one that has no place."""
    if key in _OF_ELECTION:
        return f"it belongs to ElectionSettings: Harvest(settings, election=ElectionSettings({key}=…))"
    if key in _OF_SPARK:
        return f"it belongs to SparkOptions: Harvest(settings, spark=SparkOptions({_OF_SPARK[key]}=…))"
    if key in _OF_HARVEST:
        return f"it belongs to Harvest: Harvest(settings, {key}=…)"
    return _FOR_COMMANDS.get(key) or _OTHERWISE.get(key)
