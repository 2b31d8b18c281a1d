"""The task spec: everything that the driver tells a task, sent with the Spark job.

It names the shard and the attempt, holds the pipeline's steps, and says how to reach the driver. It carries secrets,
so that none of them has to be a Spark setting; `repr` shows none of them.
"""

import pickle
from dataclasses import dataclass, field
from typing import Self

from thresher import __version__
from thresher.spark.line_key import LineKey
from thresher.spark.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverAddress:
    """Where the driver's line server listens, and the key by which task and driver know each other."""

    # The path of a Unix socket on the driver's machine, or host and port.
    place: str | tuple[str, int]
    key: LineKey = field(repr=False)
    # Over TCP: the certificate of the driver, in PEM.
    certificate: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return self.place if isinstance(self.place, str) else "{}:{}".format(*self.place)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """One attempt at one shard."""

    pipeline: str
    shard: int
    shards: int
    attempt: int
    # Pickled apart: a configuration may hold objects that only the functions' modules can unpickle.
    steps: bytes = field(repr=False)
    policy: Policy
    address: DriverAddress
    # The driver's `sys.path`, for tasks on the driver's own machine.
    path: tuple[str, ...] = ()
    # Those directories of the path whose modules are judged before they are imported: see `trusted_modules`.
    judged: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedTaskSpec:
    """A pickled task spec with its version, which is compared first: another version could not unpickle it."""

    version: str
    payload: bytes = field(repr=False)

    @classmethod
    def pack(cls, spec: TaskSpec) -> Self:
        """Pickle the spec, marked with this version."""
        return cls(version=__version__, payload=pickle.dumps(spec))

    def unpack(self) -> TaskSpec | None:
        """Unpickle the spec; return None if another version packed it."""
        if self.version != __version__:
            return None
        spec: TaskSpec = pickle.loads(self.payload)  # noqa: S301 - it comes from our own driver
        return spec
