"""The SHA-256 of a key's secret, which is all that the pool ever keeps of it."""

import re
from collections.abc import Mapping
from hashlib import sha256

from ebbtide.config.errors import SecretUnavailable
from ebbtide.config.sections.key_section import Secret

MIN_CHARACTERS = 22  # 128 random bits in base64; in hex it would be 32
MAX_BYTES = 4096  # far above any key: something else is in that file


def secret_sha256(secret: Secret, *, environ: Mapping[str, str]) -> str:
    """64 hex digits. White space around the secret does not count.

    Raises:
        SecretUnavailable: missing, unreadable, too short, too long, or with characters that no HTTP header takes.
    """
    if secret.sha256 is not None:
        return secret.sha256
    if secret.file is not None:
        where = f"the secret file {secret.file}"
        try:
            with secret.file.open("rb") as file:
                text = file.read(MAX_BYTES + 1).decode("ascii")
        except OSError as error:
            raise SecretUnavailable(f"{where} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise SecretUnavailable(f"{where} holds more than plain ASCII text") from error
    else:
        where = f"the environment variable {secret.env}"
        given = environ.get(secret.env or "")
        if given is None:
            raise SecretUnavailable(f"{where} is not set")
        text = given
    text = text.strip()
    if not MIN_CHARACTERS <= len(text) <= MAX_BYTES:
        raise SecretUnavailable(
            f"{where} holds {len(text)} characters: expected {MIN_CHARACTERS} (128 random bits) to {MAX_BYTES}"
        )
    if not re.fullmatch(r"[!-~]+", text):
        raise SecretUnavailable(f"{where} holds white space or control characters within the secret")
    return sha256(text.encode()).hexdigest()
