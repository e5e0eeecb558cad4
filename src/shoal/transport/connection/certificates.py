"""The certificate of this process, made when it is first needed, and the TLS settings for certificates.

Nobody vouches for a certificate: its own process makes it and keeps it in memory; it is worth nothing by itself. The
handshake binds its fingerprint to the proof of the token (`handshake`), which tells the process that listens from an
interceptor.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import os
import ssl
import threading
from dataclasses import dataclass

_YEARS = datetime.timedelta(days=3650)
_making = threading.Lock()


@dataclass(frozen=True)
class Certificate:
    """This process's certificate, which it shows where it is the listening end of TLS."""

    context: ssl.SSLContext
    fingerprint: bytes  # SHA-256 of the certificate


def fingerprint(certificate: bytes) -> bytes:
    """The fingerprint of a certificate in DER."""
    return hashlib.sha256(certificate).digest()


def own_certificate() -> Certificate:
    """The same for all connections of this process. The first call takes a few tenths of a second."""
    with _making:
        return _own_certificate()


@functools.cache
def _own_certificate() -> Certificate:
    # Imported here because the library takes longer to load than the rest of a launcher.
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "shoal")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _YEARS)  # clocks of machines differ, and nobody checks these dates
        .not_valid_after(now + _YEARS)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding
    private = key.private_bytes(encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    context = _context(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0  # no session is ever resumed
    _load(context, private + made.public_bytes(encoding.PEM))
    return Certificate(context, fingerprint(made.public_bytes(encoding.DER)))


def _load(context: ssl.SSLContext, chain: bytes) -> None:
    """Python loads keys from files only; this file is in memory, has no name and is gone afterwards."""
    descriptor = os.memfd_create("shoal-certificate")
    try:
        os.write(descriptor, chain)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


@functools.cache
def connecting_context() -> ssl.SSLContext:
    """For the connecting end. It accepts any certificate, since the proof that follows covers the one it was shown."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context
