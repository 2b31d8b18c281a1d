"""The key of a line: both ends prove that they have it, and neither sends it.

1. Knock: the task sends a fresh nonce and a proof over it. Whoever has no key gets no answer.
2. Challenge: the driver sends a nonce of its own and a proof over both. Now the task knows its driver: before, it has
   told nothing, and obeys nothing.
3. Over TCP, TLS follows, with the certificate that came with the task.
4. Hello: the task sends a proof over both nonces, and what it is. The driver has never seen these nonces before, so
   that a recorded hello opens nothing.

Each proof is an HMAC of the step's name too, so that none can stand for another.
"""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from typing import Self

KNOCK, CHALLENGE, HELLO = "knock", "challenge", "hello"
_NONCE = re.compile(r"[0-9a-f]{32}", re.ASCII)


@dataclass(frozen=True, slots=True)
class LineKey:
    """The secret that a driver's tasks share with it. It travels in the task, which Spark authenticates."""

    secret: bytes = field(repr=False)

    @classmethod
    def make(cls) -> Self:
        """Make a key for one run of an engine."""
        return cls(secrets.token_bytes(32))

    def proof(self, step: str, *nonces: str) -> str:
        """Return the proof of one step over the nonces so far."""
        return hmac.new(self.secret, "\n".join((step, *nonces)).encode(), hashlib.sha256).hexdigest()

    def proves(self, proof: object, step: str, *nonces: object) -> bool:
        """Whether the other end has the key: `proof` and its nonce are whatever it has sent."""
        known = [nonce for nonce in nonces if isinstance(nonce, str) and _NONCE.fullmatch(nonce)]
        if len(known) != len(nonces) or not isinstance(proof, str) or not proof.isascii():
            return False
        return hmac.compare_digest(proof, self.proof(step, *known))


def make_nonce() -> str:
    """Return a number that was never used."""
    return secrets.token_hex(16)
