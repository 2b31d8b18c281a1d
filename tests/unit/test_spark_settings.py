import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from thresher.spark.problem import PipelineInvalid, SparkUnfit
from thresher.spark.session.jvm import shown_line
from thresher.spark.session.settings import (
    SparkOptions,
    breaking_settings,
    context_settings,
    default_master,
    exposed_arguments,
    exposed_variables,
    is_local,
    java_options,
    needed_settings,
    page_address,
    properties_file,
    read_defaults,
    settings_of,
)

FIT = {
    "spark.python.worker.reuse": "false",
    "spark.authenticate": "true",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.executorEnv.PYTHONSAFEPATH": "1",
}


def settings(
    options: SparkOptions | None = None, *, master: str = "local[4]", submitted: bool = False
) -> dict[str, str]:
    given = {"spark.master": master} | settings_of(options or SparkOptions())
    return context_settings(given, name="orders", shards=3, submitted=submitted)


def test_our_own_settings_do_not_break_the_engine() -> None:
    assert breaking_settings(settings()) == []
    assert breaking_settings(settings(master="yarn")) == []


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, None),
        ({"spark.python.worker.reuse": "true"}, "spark.python.worker.reuse is true"),
        ({"spark.python.worker.reuse": " TRUE "}, "spark.python.worker.reuse is  TRUE "),
        ({"spark.speculation": "true"}, "spark.speculation is true"),
        ({"spark.python.use.daemon": "false"}, "spark.python.use.daemon is false"),
        ({"spark.python.worker.killOnIdleTimeout": "true"}, "spark.python.worker.killOnIdleTimeout is true"),
        ({"spark.authenticate": "false"}, "spark.authenticate is false"),
        ({"spark.python.unix.domain.socket.enabled": "no"}, "spark.python.unix.domain.socket.enabled is no"),
        ({"spark.executorEnv.PYTHONSAFEPATH": ""}, "spark.executorEnv.PYTHONSAFEPATH is empty"),
        ({"spark.ui.enabled": "true"}, "spark.ui.killEnabled is not set, and true by default"),
    ],
)
def test_a_setting_that_breaks_the_engine_is_named(changes: dict[str, str], name: str | None) -> None:
    found = breaking_settings(FIT | changes)
    assert [each.split(":")[0] for each in found] == ([] if name is None else [name])


def test_a_spark_default_that_breaks_the_engine_is_named() -> None:
    (found,) = breaking_settings({key: value for key, value in FIT.items() if key != "spark.python.worker.reuse"})
    assert found.startswith("spark.python.worker.reuse is not set, and true by default")
    assert found.endswith("set it to false")


def test_local_masters_are_recognised() -> None:
    assert [is_local(master) for master in ("local", "local[*]", "local[4,2]", "local-cluster[2,1,1024]", "yarn")] == [
        True, True, True, False, False,
    ]  # fmt: skip


def test_a_local_master_has_two_spare_slots() -> None:
    assert default_master(500) == "local[502]"


def test_only_local_drivers_listen_on_loopback() -> None:
    assert settings()["spark.driver.bindAddress"] == "127.0.0.1"
    assert "spark.driver.bindAddress" not in settings(master="spark://host:7077")


def test_a_cluster_gets_single_core_executors_with_a_spare() -> None:
    cluster = settings(master="spark://host:7077")
    assert (cluster["spark.executor.cores"], cluster["spark.cores.max"]) == ("1", "4")


def test_settings_of_the_user_win() -> None:
    options = SparkOptions(
        conf={"spark.driver.memory": "2g", "spark.app.name": "mine"}, archives=("a.tar.gz#e", "b.zip")
    )
    chosen = settings(options)
    assert breaking_settings(chosen) == []
    assert (chosen["spark.driver.memory"], chosen["spark.app.name"]) == ("2g", "mine")
    assert chosen["spark.archives"] == "a.tar.gz#e,b.zip"


def test_the_jvm_of_spark_submit_keeps_its_size() -> None:
    assert "spark.driver.memory" not in settings(submitted=True)


@pytest.mark.parametrize("user", ["", '-Dmine="1 2"', "-Dlog4j2.mine=1 -Dfoo=2"])
def test_java_options_survive_spaces_and_keep_the_users_own(user: str) -> None:
    archive = ("-XX:ArchiveClassesAtExit=/c d/x.jsa", "-Xlog:cds*=warning:file=/e f/cds.log")
    text = java_options(
        log_configuration=Path("/a b/log4j2.properties"), temporary=Path('/tmp/x "y"'), archive=archive, user=user
    )
    assert shlex.split(text) == [
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        "-XX:-UsePerfData",
        "-XX:+ExitOnOutOfMemoryError",
        "-Dlog4j2.configurationFile=/a b/log4j2.properties",
        '-Djava.io.tmpdir=/tmp/x "y"',
        *archive,
        *shlex.split(user),
    ]


def test_a_master_among_the_settings_is_used() -> None:
    given = settings_of(SparkOptions(conf={"spark.master": "spark://host:7077"}))
    assert "spark.driver.bindAddress" not in context_settings(given, name="orders", shards=2, submitted=False)
    assert settings_of(SparkOptions(master="local[2]", conf={"spark.master": "yarn"}))["spark.master"] == "local[2]"


def test_defaults_of_the_installation_are_read_as_spark_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "spark-defaults.conf"
    path.write_text("# a comment\n\nspark.master  local[7]\nspark.a=b=c\n spark.d : e f \n! no\nspark.empty\n")
    assert read_defaults(path) == {"spark.master": "local[7]", "spark.a": "b=c", "spark.d": "e f"}
    assert read_defaults(tmp_path / "absent") == {}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"line_port": 70000}, "line_port 70000"),
        ({"line_port": -1}, "line_port -1"),
        ({"line_port": "80"}, "line_port '80'"),
        ({"conf": {"spark.speculation": False}}, "conf 'spark.speculation': give a text"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(PipelineInvalid) as refused:
        SparkOptions(**options)
    assert reason in str(refused.value)


def test_options_hide_their_settings() -> None:
    assert "hunter2" not in repr(SparkOptions(conf={"spark.ssl.keyPassword": "hunter2"}))


CLUSTER = {"spark.master": "spark://host:7077", "spark.authenticate.secret": "hunter2"}


def test_a_cluster_authenticates_and_encrypts_or_is_refused() -> None:
    ours = context_settings(CLUSTER, name="orders", shards=2, submitted=False)
    assert breaking_settings(ours) == []
    for key, wrong in (
        ("spark.authenticate", "false"),
        ("spark.network.crypto.enabled", "false"),
        ("spark.network.crypto.saslFallback", "true"),
        ("spark.io.encryption.enabled", "false"),
    ):
        (told,) = breaking_settings(ours | {key: wrong})
        assert told.startswith(f"{key} is {wrong}: ")
    (told,) = breaking_settings(ours | {"spark.authenticate.secret": ""})
    assert told.startswith("spark.authenticate.secret is not set")
    assert not [each for each in breaking_settings(CLUSTER) if "hunter2" in each]


def test_tls_of_spark_stands_in_for_its_encryption() -> None:
    tls = CLUSTER | {"spark.ssl.rpc.enabled": "true"}
    ours = context_settings(tls, name="orders", shards=2, submitted=False)
    assert "spark.network.crypto.enabled" not in ours
    assert breaking_settings(ours) == []
    assert ours["spark.io.encryption.enabled"] == "true"


@pytest.mark.parametrize("master", ["local[4]", "yarn", "k8s://https://host:443"])
def test_the_settings_for_a_programs_own_context_suffice(master: str) -> None:
    assert breaking_settings({"spark.master": master} | needed_settings(master)) == []
    wrong = breaking_settings({"spark.master": master})
    assert any(each.startswith("spark.authenticate is not set, and false by default") for each in wrong)
    assert any(each.startswith("spark.executorEnv.PYTHONSAFEPATH is not set, and empty by default") for each in wrong)


def test_sparks_page_has_no_kill_links_and_is_on_loopback() -> None:
    with_page = settings(SparkOptions(conf={"spark.ui.enabled": "true"}))
    assert breaking_settings(with_page) == []
    assert page_address(with_page, {}) == {"SPARK_LOCAL_IP": "127.0.0.1"}
    assert page_address(with_page, {"SPARK_LOCAL_IP": "10.0.0.1"}) == {}
    (told,) = breaking_settings(with_page | {"spark.ui.killEnabled": "true"})
    assert told.startswith("spark.ui.killEnabled is true: ")
    elsewhere = context_settings(CLUSTER | {"spark.ui.enabled": "true"}, name="orders", shards=2, submitted=False)
    with pytest.raises(SparkUnfit, match=r"set spark\.driver\.host"):
        page_address(elsewhere, {})
    assert page_address(elsewhere | {"spark.driver.host": "driver"}, {}) == {"SPARK_LOCAL_IP": "127.0.0.1"}


@pytest.mark.parametrize("key", ["spark.driver.extraJavaOptions", "spark.executor.defaultJavaOptions"])
def test_a_secret_among_javas_options_is_refused_unshown(key: str) -> None:
    option = '-Dx=1 -Djavax.net.ssl.keyStorePassword="hunter2"'
    (told,) = breaking_settings(settings() | {key: option})
    assert told.startswith(f"{key} holds javax.net.ssl.keyStorePassword: ")
    assert "hunter2" not in told
    assert "JAVA_OPTIONS" not in told
    assert breaking_settings(settings() | {key: "-Djavax.net.ssl.trustStore=/a/passwords.jks"}) == []


def test_a_secret_among_the_arguments_of_spark_submit_is_refused() -> None:
    (told,) = exposed_arguments("--conf spark.ssl.keyPassword=hunter2 --conf spark.a=b pyspark-shell")
    assert told.startswith("PYSPARK_SUBMIT_ARGS holds spark.ssl.keyPassword: ")
    assert "hunter2" not in told
    nested = (
        "--conf spark.driver.extraJavaOptions=-Dstore.password=hunter2 --driver-java-options '-Da=b -Dtoken=hunter2'"
    )
    told, other = exposed_arguments(nested)
    assert told.startswith("PYSPARK_SUBMIT_ARGS holds store.password: ")
    assert other.startswith("PYSPARK_SUBMIT_ARGS holds token: ")
    assert "hunter2" not in told + other


@pytest.mark.parametrize(
    "variable", ["SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS"]
)
def test_a_secret_in_a_variable_of_java_is_refused_unshown(variable: str) -> None:
    (told,) = exposed_variables({variable: '-Dx=1 -Djavax.net.ssl.keyStorePassword="hunter2"'})
    assert told.startswith(f"{variable} holds javax.net.ssl.keyStorePassword: ")
    assert "hunter2" not in told
    # Java prints its variables, so that no advice may lead there.
    assert "JAVA_OPTIONS" not in told.removeprefix(variable)
    assert exposed_variables({variable: "-Djavax.net.ssl.trustStore=/a/passwords.jks", "MY_OPTS": "-Dtoken=x"}) == []


def test_options_that_java_prints_are_masked_in_the_log() -> None:
    for variable in ("NOTE: Picked up JDK_JAVA_OPTIONS:", "Picked up _JAVA_OPTIONS:"):
        assert shown_line(f"{variable} -Da=b -Dtoken=hunter2\n".encode()) == f"{variable} ***"
    assert shown_line(b"WARN no password\n") == "WARN no password"


def test_settings_survive_a_properties_file() -> None:
    given = {"spark.a": "b c=d", "spark.é": 'a:b "c" \\ # !\n\té😀', "spark.empty": ""}
    lines = properties_file(given).splitlines()
    assert len(lines) == len(given)
    assert all(line.isascii() for line in lines)

    def read(text: str) -> str:
        units = re.sub(r"\\u(....)", lambda found: chr(int(found[1], 16)), text)
        return units.encode("utf-16", "surrogatepass").decode("utf-16")

    assert {read(key): read(value) for key, _, value in (line.partition("=") for line in lines)} == given
