"""A self-signed certificate for a broker on loopback, made with Java's keytool."""

import secrets
from dataclasses import dataclass, field
from pathlib import Path

from thresher.devstack.cache import write_whole
from thresher.devstack.problem import StackProblem
from thresher.devstack.server import run_tool

_ALIAS = "kafka"
# For a JVM that ends within a second: half its processor time goes to the optimising compiler and to GC threads.
_SHORT_RUN = ("-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC")


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The server's key and certificate in a keystore with a password, and the CA certificate for clients, in PEM."""

    keystore: Path
    password: str = field(repr=False)
    authority: Path


def certificate_in(directory: Path, address: str, java: Path) -> Certificate:
    """Return the certificate in a directory. If it is missing, make it for an IP address."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    noted = directory / "password"
    certificate = Certificate(
        keystore=directory / "key.p12",
        password=noted.read_text(encoding="ascii") if noted.exists() else secrets.token_hex(16),
        authority=directory / "ca.pem",
    )
    if certificate.authority.exists():
        return certificate
    write_whole(noted, certificate.password)
    certificate.keystore.unlink(missing_ok=True)
    store = ("-alias", _ALIAS, "-storetype", "PKCS12", "-keystore", certificate.keystore, "-storepass:file", noted)
    _keytool(
        java, directory, "-genkeypair", *store, "-keyalg", "EC", "-groupname", "secp256r1", "-validity", "30",
        "-dname", "CN=Thresher's local stack", "-ext", f"san=ip:{address},dns:localhost", "-ext", "bc:c",
    )  # fmt: skip
    # Written last, and renamed: if this file exists, all the others do.
    part = directory / "ca.part"
    _keytool(java, directory, "-exportcert", "-rfc", *store, "-file", part)
    part.rename(certificate.authority)
    return certificate


def _keytool(java: Path, directory: Path, *arguments: str | Path) -> None:
    tool = java.resolve().with_name("keytool")
    status, output = run_tool([tool, *_SHORT_RUN, *arguments], directory)
    if status != 0:
        raise StackProblem(f"the broker's certificate could not be made: {output}")
