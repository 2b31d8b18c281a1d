"""Reads a process's pages over HTTP, as a probe and Prometheus do."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from thresher.observe.server import Server
from thresher.service.pages import Shown, StatusPages

_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Scraper:
    def __init__(self, at: str, label: str = "relay") -> None:
        self._at, self._label = at, label

    def get(self, path: str) -> tuple[int, str]:
        try:
            with _opener.open(f"http://{self._at}{path}", timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def probe(self, path: str) -> tuple[int, dict[str, Any]]:
        code, body = self.get(path)
        return code, json.loads(body)

    def samples(self) -> Samples:
        """Scrape, and return the samples by name and labels, without the pipeline's label."""
        code, body = self.get("/metrics")
        assert code == 200, body
        found: Samples = {}
        for family in text_string_to_metric_families(body):
            for sample in family.samples:
                labels = tuple(sorted((name, value) for name, value in sample.labels.items() if name != self._label))
                assert (sample.name, labels) not in found, f"{sample.name} {labels} is there twice"
                found[sample.name, labels] = sample.value
        return found

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of a name's samples with these labels."""
        wanted = set(labels.items())
        return sum(value for (each, has), value in self.samples().items() if each == name and wanted <= set(has))


def counters(samples: Samples) -> Samples:
    """Return the counters, which must never decrease."""
    ends = ("_total", "_bucket", "_count", "_sum")
    return {key: value for key, value in samples.items() if key[0].endswith(ends)}


@contextmanager
def shown(process: Shown) -> Iterator[Scraper]:
    with closing(StatusPages(process)) as board, Server("127.0.0.1", 0, board.pages) as server:
        yield Scraper(f"127.0.0.1:{server.port}", process.workload.wording.label)
