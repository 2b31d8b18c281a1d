import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.cluster import Cluster, cluster
from tests.processes import short_directory
from thresher.spark.session.environment import pack


@pytest.fixture(scope="module")
def environment_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    archive = tmp_path_factory.mktemp("environment") / "environment.tar.gz"
    pack(
        archive, only=["thresher", "pyarrow", "adbc-driver-postgresql", "confluent-kafka", "psycopg", "psycopg-binary"]
    )
    return archive


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as running_cluster:
        yield running_cluster


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A directory for the temporary files of a program alone."""
    place = short_directory()
    yield place
    shutil.rmtree(place, ignore_errors=True)
