"""Calls to SQS: the AWS JSON 1.0 protocol, and what its errors mean to the router."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

import msgspec

from penstock.clock import Clock
from penstock.errors import FailedPrecondition, InvalidArgument, QueueNotFound, Unavailable
from penstock.router.core.config import shown_uri
from penstock.router.sources.sqs_credentials import CredentialChain
from penstock.router.sources.sqs_http import HttpConnections
from penstock.router.sources.sqs_signature import Signer

CALL_SECONDS = 25
"""Longer than the longest poll, so that only a server that is away runs into it."""
ENDPOINT = "SQS_ENDPOINT_OVERRIDE"

_QUEUE_WANTED = "the URL of an SQS queue, as https://sqs.REGION.amazonaws.com/ACCOUNT/NAME"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo")
_PATH = re.compile(r"(/[A-Za-z0-9_.~-]+)*/?")
_REGION = re.compile(r"(?:^|\.)sqs(?:-fips)?\.([a-z0-9-]+)\.")
_XML_CODE = re.compile(rb"<Code>([A-Za-z.]{1,80})</Code>")
_OLD_HOST = re.compile(r"(?:([a-z0-9-]+)\.)?queue\.amazonaws\.com")

BUSY = frozenset(
    {
        "InternalError",
        "InternalFailure",
        "KmsThrottled",
        "OverLimit",
        "RequestLimitExceeded",
        "RequestThrottled",
        "ServiceUnavailable",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
"""Codes of errors that pass."""
_GONE = frozenset({"NonExistentQueue", "QueueDoesNotExist", "InvalidAddress"})
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired"})
_UNKNOWN_CALLER = _EXPIRED | {
    "IncompleteSignature",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidSecurity",
    "InvalidSignatureException",
    "MissingAuthenticationToken",
    "NotAuthorized",
    "OptInRequired",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
}
_DENIED = frozenset({"AccessDenied", "AccessDeniedException", "KmsAccessDenied"})


class Refusal(FailedPrecondition):
    """SQS understood the call, and does not do it as it is."""


class Address(msgspec.Struct, frozen=True):
    """Where a queue is, and where calls that concern it go."""

    queue_url: str
    is_fifo: bool
    region: str
    host: str
    port: int
    is_tls: bool
    path: str

    @property
    def authority(self) -> str:
        """What the Host header says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.is_tls else 80) else f"{host}:{self.port}"


def address_of(uri: str, environment: Mapping[str, str]) -> Address:
    """Where the queue of this URL is; InvalidArgument when it is none."""
    queue, queue_port = _parsed("queueUri", uri, _QUEUE_WANTED)
    name = queue.path.rpartition("/")[2]
    if not _NAME.fullmatch(name):
        raise InvalidArgument.of("queueUri", shown_uri(uri), _QUEUE_WANTED, hint="its last part is the queue's name")
    server, port, path = queue, queue_port, "/"
    if override := environment.get(ENDPOINT, ""):
        server, port = _parsed(ENDPOINT, override, "a URL as http://localhost:4566")
        path = server.path or "/"
    host, is_tls = server.hostname or "", server.scheme == "https"
    if old := _OLD_HOST.fullmatch(host):
        host = f"sqs.{old[1] or 'us-east-1'}.amazonaws.com"
    found = _REGION.search(host) or _REGION.search(queue.hostname or "")
    region = found[1] if found else environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
    return Address(uri, name.endswith(".fifo"), region, host, port or (443 if is_tls else 80), is_tls, path)


def _parsed(name: str, url: str, wanted: str) -> tuple[SplitResult, int | None]:
    try:
        parts = urlsplit(url)
        port = parts.port
        # A host name that cannot be looked up is refused here: later it would look like a server that is away.
        is_good = bool((parts.hostname or "").encode("idna"))
    except ValueError:  # UnicodeError is one
        raise InvalidArgument.of(name, shown_uri(url), wanted) from None
    if "@" in parts.netloc:
        raise InvalidArgument.of(name, shown_uri(url), f"{wanted}, without a user", hint="credentials come from the environment")
    if parts.scheme not in {"http", "https"} or not is_good or port == 0 or parts.query or parts.fragment:
        raise InvalidArgument.of(name, shown_uri(url), wanted)
    if not _PATH.fullmatch(parts.path) or not url.isascii() or not url.isprintable() or " " in url:
        raise InvalidArgument.of(name, shown_uri(url), wanted)
    return parts, port


class _Error(msgspec.Struct):
    type: str = msgspec.field(name="__type", default="")
    message: str = ""


_decode_error = msgspec.json.Decoder(_Error).decode


class SqsApi:
    """Calls that concern one queue."""

    def __init__(
        self, address: Address, environment: Mapping[str, str], clock: Clock, call_seconds: float = CALL_SECONDS
    ) -> None:
        self.address = address
        self._clock = clock
        self._call_seconds = call_seconds
        self._credentials = CredentialChain(environment)
        self._signer = Signer(address.authority, address.region)
        tls = None
        if address.is_tls:
            try:
                tls = ssl.create_default_context(cafile=environment.get("AWS_CA_BUNDLE") or None)
            except (OSError, ssl.SSLError) as error:
                raise FailedPrecondition(f"the file that AWS_CA_BUNDLE names cannot be read: {error}") from None
        self._http = HttpConnections(address.host, address.port, tls)

    def open(self) -> None:
        """Keep connections, also after a close."""
        self._http.is_kept = True

    async def call(self, action: str, **parameters: Any) -> bytes:
        """Do it, and return the answer's JSON.

        Unavailable: later, perhaps. QueueNotFound, FailedPrecondition: not before somebody changes something. Refusal: never so.
        """
        body = msgspec.json.encode({"QueueUrl": self.address.queue_url, **parameters})
        status, answer = await self._post(f"AmazonSQS.{action}", body)
        if status != 200 and _code(answer)[0] in _EXPIRED:
            self._credentials.forget()
            status, answer = await self._post(f"AmazonSQS.{action}", body)
        if status != 200:
            raise self._error(action, status, *_code(answer))
        return answer

    async def _post(self, target: str, body: bytes) -> tuple[int, bytes]:
        credentials = await self._credentials.current()
        head = self._signer.head(credentials, self.address.path, target, body, self._clock.now())
        try:
            async with asyncio.timeout(self._call_seconds):
                return await self._http.post(self.address.path, head, body)
        except TimeoutError:
            self._http.drop_idle()
            raise Unavailable(f"{self.address.authority} did not answer within {self._call_seconds:g} s") from None

    def _error(self, action: str, status: int, code: str, text: str) -> Exception:
        url = self.address.queue_url
        if code in _GONE:
            return QueueNotFound(url)
        if code in _UNKNOWN_CALLER:
            # Its text may repeat what was signed, a session's token included.
            return FailedPrecondition(
                f"SQS does not take the AWS credentials ({code})",
                hint="look at AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, the region and this machine's clock",
            )
        if code in _DENIED:
            return FailedPrecondition(
                f"SQS does not allow {action} on {url} ({code})",
                hint="allow sqs:ReceiveMessage, DeleteMessage, ChangeMessageVisibility and GetQueueAttributes to the router",
            )
        if code in BUSY or status >= 500 or status == 429:
            return Unavailable(f"SQS answers {action} with status {status}{f' ({code})' if code else ''}")
        if not code:
            return FailedPrecondition(
                f"{self.address.authority} answers {action} with status {status}, which is none of SQS's",
                hint=f"look for a typing error in the queue's URL, or in {ENDPOINT}",
            )
        return Refusal(f"SQS refuses {action} on {url}: {code}: {text[:200]}")

    def close(self) -> None:
        """Close every connection."""
        self._http.close()


def _code(answer: bytes) -> tuple[str, str]:
    """The error's code, without what versions of SQS put in front of it, and its text."""
    try:
        error = _decode_error(answer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # Who is refused before the call is looked at may be told in the older protocol.
        found = _XML_CODE.search(answer)
        return (found[1].decode() if found else ""), ""
    return error.type.rpartition("#")[2].removeprefix("AWS.SimpleQueueService."), error.message
