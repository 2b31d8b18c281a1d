"""What a task is told: which shard to run, and how to reach the driver."""

import pickle
from dataclasses import dataclass, field
from typing import Self

from thresher import __version__
from thresher.spark.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where the driver listens, and what proves that a caller was sent by it."""

    host: str
    port: int
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One attempt at one shard."""

    pipeline: str
    shard: int
    shards: int
    attempt: int
    # Packed by themselves: a configuration may hold what only the functions' modules can unpack.
    steps: bytes = field(repr=False)
    policy: Policy
    address: Address
    # Where the driver finds modules, for tasks that run on its own machine.
    path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """A spec on its way: the version is looked at before anything is unpacked, which another version could not."""

    version: str
    payload: bytes = field(repr=False)

    @classmethod
    def of(cls, spec: Spec) -> Self:
        """Pack."""
        return cls(version=__version__, payload=pickle.dumps(spec))

    def open(self) -> Spec | None:
        """Unpack, or return None when another version packed it."""
        if self.version != __version__:
            return None
        spec: Spec = pickle.loads(self.payload)  # noqa: S301 - it comes from our own driver
        return spec
