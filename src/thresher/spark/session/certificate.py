"""Makes the certificate of a driver's lines: Java makes the key and the signature, what is signed is put together here.

Python's standard library can use certificates and cannot make them; the JVM, which every driver has, can sign.
"""

import base64
import secrets
import textwrap
from collections.abc import Callable
from typing import Any

from thresher.spark.tls import Certificate

_SEQUENCE, _SET, _INTEGER, _BITS, _OCTETS, _TRUE = 0x30, 0x31, 0x02, 0x03, 0x04, b"\x01\x01\xff"
# ecdsa-with-SHA256, and the name CN=thresher.
_ALGORITHM = bytes.fromhex("300a06082a8648ce3d040302")
_COMMON_NAME = bytes.fromhex("0603550403")
_BASIC_CONSTRAINTS = bytes.fromhex("0603551d13")
# The key lives as long as its driver, and no clock decides.
_VALID = (0x17, b"000101000000Z"), (0x18, b"99991231235959Z")


def make_certificate(jvm: Any) -> Certificate:
    """Make a key and a certificate for it, in some tenths of a second."""
    generator = jvm.java.security.KeyPairGenerator.getInstance("EC")
    generator.initialize(jvm.java.security.spec.ECGenParameterSpec("secp256r1"))
    pair = generator.generateKeyPair()
    private = pair.getPrivate()
    factory = jvm.java.security.KeyFactory.getInstance("EC")

    def encoded(key: Any, kind: str) -> bytes:
        # The classes of the keys themselves are hidden in a module of Java.
        return bytes(factory.getKeySpec(key, jvm.java.lang.Class.forName(f"java.security.spec.{kind}")).getEncoded())

    def sign(content: bytes) -> bytes:
        signature = jvm.java.security.Signature.getInstance("SHA256withECDSA")
        signature.initSign(private)
        signature.update(content)
        return bytes(signature.sign())

    return Certificate(
        public=_pem("CERTIFICATE", self_signed(encoded(pair.getPublic(), "X509EncodedKeySpec"), sign)),
        private=_pem("PRIVATE KEY", encoded(private, "PKCS8EncodedKeySpec")),
    )


def self_signed(public_key: bytes, sign: Callable[[bytes], bytes]) -> bytes:
    """Return a certificate (X.509 version 3, DER) for an encoded public key, signed by its own private key."""
    name = _der(_SEQUENCE, _der(_SET, _der(_SEQUENCE, _COMMON_NAME + _der(0x0C, b"thresher"))))
    constraints = _der(_SEQUENCE, _BASIC_CONSTRAINTS + _TRUE + _der(_OCTETS, _der(_SEQUENCE, _TRUE)))
    content = _der(
        _SEQUENCE,
        _der(0xA0, _der(_INTEGER, b"\x02"))
        # A positive number whose first byte is not zero.
        + _der(_INTEGER, b"\x01" + secrets.token_bytes(8))
        + _ALGORITHM
        + name
        + _der(_SEQUENCE, b"".join(_der(kind, time) for kind, time in _VALID))
        + name
        + public_key
        + _der(0xA3, _der(_SEQUENCE, constraints)),
    )
    return _der(_SEQUENCE, content + _ALGORITHM + _der(_BITS, b"\x00" + sign(content)))


def _der(tag: int, content: bytes) -> bytes:
    """Return one value in DER: its tag, its length and its content."""
    length = len(content)
    if length < 0x80:
        return bytes((tag, length)) + content
    size = (length.bit_length() + 7) // 8
    return bytes((tag, 0x80 | size)) + length.to_bytes(size, "big") + content


def _pem(what: str, content: bytes) -> str:
    lines = "\n".join(textwrap.wrap(base64.b64encode(content).decode(), 64))
    return f"-----BEGIN {what}-----\n{lines}\n-----END {what}-----\n"
