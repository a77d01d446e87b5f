"""HTTPS by certificate files: who may read the key, which versions are spoken, and renewal under running streams."""

import asyncio
import contextlib
import datetime
import ipaddress
import os
import ssl
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ebbtide_serve.gateway.server import GatewayServer
from tests.serve_apps.gateway.fakes import MODEL, FakeArbiter, chat, running_gateway, settings, until

LOOPBACK = ipaddress.ip_address("127.0.0.1")


def make_certificate(folder: Path, name: str, *, mode: int = 0o600) -> tuple[Path, Path]:
    """A self-made certificate for 127.0.0.1 with ``name`` in it; files are replaced as certbot does."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(LOOPBACK)]), False)
        .sign(key, hashes.SHA256())
    )
    texts = {
        "cert.pem": certificate.public_bytes(serialization.Encoding.PEM),
        "key.pem": key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    }
    for file, text in texts.items():
        draft = folder / f"{file}.new"
        draft.write_bytes(text)
        draft.chmod(mode if file == "key.pem" else 0o644)
        os.replace(draft, folder / file)
    return folder / "cert.pem", folder / "key.pem"


def common_name(port: int, context: ssl.SSLContext | None = None) -> str:
    """Of the certificate that the gateway shows."""
    import socket

    context = context or ssl._create_unverified_context()
    with socket.create_connection(("127.0.0.1", port), 5) as raw, context.wrap_socket(raw) as wrapped:
        shown = wrapped.getpeercert(binary_form=True)
        assert shown is not None
        found = x509.load_der_x509_certificate(shown).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return str(found[0].value)


async def test_the_unmodified_openai_client_speaks_https_with_it(tmp_path: Path) -> None:
    import openai

    cert, key = make_certificate(tmp_path, "first")
    async with running_gateway(tls_cert=str(cert), tls_key=str(key)) as scene:
        assert scene.url.startswith("https://") and scene.arbiter.reports[-1].url.startswith("https://")
        await scene.route(await scene.replica())
        verify = ssl.create_default_context(cafile=str(cert))
        async with (
            httpx.AsyncClient(verify=verify, trust_env=False) as http,
            openai.AsyncOpenAI(
                base_url=f"{scene.url}/v1",
                api_key="any",
                max_retries=0,
                http_client=http,  # type: ignore[arg-type] # it takes both httpx and its successor
            ) as client,
        ):
            stream = await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "hello"}], stream=True
            )
            assert "".join([part.choices[0].delta.content or "" async for part in stream]) == "t0 t1 t2 "
        async with httpx.AsyncClient(trust_env=False) as plain:
            with pytest.raises(httpx.HTTPError):
                await plain.get(scene.url.replace("https", "http") + "/health")


async def test_nothing_older_than_tls_1_2_is_spoken(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path, "first")
    async with running_gateway(tls_cert=str(cert), tls_key=str(key)) as scene:
        for version, spoken in [(ssl.TLSVersion.TLSv1_2, True), (ssl.TLSVersion.TLSv1_1, False)]:
            context = ssl._create_unverified_context()
            with pytest.warns(DeprecationWarning) if not spoken else contextlib.nullcontext():
                context.minimum_version = context.maximum_version = version
            context.set_ciphers("ALL:@SECLEVEL=0")
            if spoken:
                assert await asyncio.to_thread(common_name, scene.server.port, context) == "first"
            else:
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    await asyncio.to_thread(common_name, scene.server.port, context)


async def test_a_renewed_certificate_is_shown_and_running_streams_go_on(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path, "first")
    async with running_gateway(tls_cert=str(cert), tls_key=str(key)) as scene:
        replica = await scene.replica(tokens=100, token_every_s=0.03)
        await scene.route(replica)
        async with httpx.AsyncClient(base_url=scene.url, verify=False, trust_env=False, timeout=20) as http:
            streaming = asyncio.create_task(http.post("/v1/chat/completions", json=chat(stream=True)))
            await until(lambda: replica.running == 1)
            make_certificate(tmp_path, "second")
            shown = ""
            for _ in range(40):
                shown = await asyncio.to_thread(common_name, scene.server.port)
                if shown == "second":
                    break
                await asyncio.sleep(0.1)
            assert shown == "second" and not streaming.done()
            (tmp_path / "cert.pem").write_text("no certificate at all")  # a renewal that went wrong
            await asyncio.sleep(1.3)
            assert await asyncio.to_thread(common_name, scene.server.port) == "second"
            make_certificate(tmp_path, "third", mode=0o644)
            await asyncio.sleep(1.3)
            assert await asyncio.to_thread(common_name, scene.server.port) == "second"
            assert (await streaming).text.endswith("data: [DONE]\n\n")


@pytest.mark.proves("a bad new certificate leaves the old one in use")
async def test_a_renewed_certificate_whose_key_has_not_come_yet_keeps_the_old_pair_in_use(tmp_path: Path) -> None:
    """Two files cannot be replaced at once: between the two they do not fit."""
    cert, key = make_certificate(tmp_path, "first")
    (tmp_path / "new").mkdir()
    new_cert, new_key = make_certificate(tmp_path / "new", "second")
    async with running_gateway(tls_cert=str(cert), tls_key=str(key)) as scene:
        os.replace(new_cert, cert)
        await asyncio.sleep(1.5)
        assert await asyncio.to_thread(common_name, scene.server.port) == "first"
        os.replace(new_key, key)
        shown = ""
        for _ in range(60):
            shown = await asyncio.to_thread(common_name, scene.server.port)
            if shown == "second":
                break
            await asyncio.sleep(0.1)
        assert shown == "second"


@pytest.mark.proves("a TLS key that others may read is refused")
async def test_a_key_that_others_may_read_or_that_does_not_fit_keeps_the_gateway_from_starting(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path, "first")
    key.chmod(0o640)
    with pytest.raises(ValueError, match=r"may be read by others \(mode 0640\): chmod 600"):
        await GatewayServer(settings(tls_cert=str(cert), tls_key=str(key)), FakeArbiter()).start()
    (tmp_path / "other").mkdir()
    other, _ = make_certificate(tmp_path / "other", "other")
    key.chmod(0o600)
    with pytest.raises(ValueError, match=r"other/cert\.pem"):
        await GatewayServer(settings(tls_cert=str(other), tls_key=str(key)), FakeArbiter()).start()
    with pytest.raises(ValueError, match="nowhere"):
        await GatewayServer(settings(tls_cert=str(tmp_path / "nowhere"), tls_key=str(key)), FakeArbiter()).start()


@pytest.mark.proves("TLS handshakes have a deadline")
async def test_a_handshake_that_never_comes_is_given_up(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path, "first")
    async with running_gateway(tls_cert=str(cert), tls_key=str(key), header_timeout_s=0.4) as scene:
        reader, writer = await asyncio.open_connection("127.0.0.1", scene.server.port)
        with contextlib.suppress(ConnectionError):  # given up by a reset: just as well
            assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
