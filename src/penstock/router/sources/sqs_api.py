"""Calls to SQS: the AWS JSON 1.0 protocol, what its errors mean to the router, and the connections that carry the requests."""

from __future__ import annotations

import asyncio
import re
import ssl
from asyncio import IncompleteReadError, LimitOverrunError, StreamReader, StreamWriter
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

import msgspec

from penstock.clock import Clock
from penstock.errors import FailedPrecondition, InvalidArgument, QueueNotFound, Unavailable
from penstock.router.core.config import shown_uri
from penstock.router.sources.sqs_credentials import CredentialChain, Signer

BODY_LIMIT = 64 * 1024 * 1024
"""The size limit of an answer in bytes: ten messages of 1 MiB, and the overhead of JSON."""


class _Stale(Exception):
    """The server had closed a kept connection before it saw the request, as far as HTTP shows."""


class HttpConnections:
    """POST requests to one server over kept connections: the part of HTTP/1.1 that Amazon's services use.

    A connection carries one request at a time, and there is a connection for each running request. A cancelled request closes
    its connection. Redirects and proxies are not supported. Belongs to one event loop.
    """

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        self._idle: list[tuple[StreamReader, StreamWriter]] = []
        self.is_kept = True
        """Whether connections are kept for the next request."""

    async def post(self, path: str, head: bytes, body: bytes) -> tuple[int, bytes]:
        """The answer's status and body. `head` are complete header lines; Content-Length is added.

        Unavailable if there is no answer, or an invalid one.
        """
        request = b"POST %b HTTP/1.1\r\n%bcontent-length: %d\r\n\r\n%b" % (path.encode(), head, len(body), body)
        try:
            while self._idle:
                reader, writer = self._idle.pop()
                if reader.at_eof() or writer.transport.is_closing():
                    writer.transport.abort()
                    continue
                try:
                    return await self._exchange(reader, writer, request)
                except _Stale:
                    continue
            return await self._exchange(*await self._connect(), request)
        except ssl.SSLCertVerificationError as error:
            raise FailedPrecondition(
                f"the certificate of {self._host} is not trusted: {error.verify_message}",
                hint="correct the host name, or name the authority's file in AWS_CA_BUNDLE",
            ) from None
        except (OSError, IncompleteReadError, LimitOverrunError, _Stale) as error:
            raise Unavailable(f"no connection to {self._host}:{self._port}: {str(error) or type(error).__name__}") from None
        except ValueError:
            raise Unavailable(f"what {self._host}:{self._port} answers is not HTTP") from None

    def drop_idle(self) -> None:
        """Close idle connections: what broke one connection may have broken all of them."""
        while self._idle:
            _, writer = self._idle.pop()
            writer.transport.abort()

    def close(self) -> None:
        """Close idle connections now, and the others when they become idle."""
        self.is_kept = False
        self.drop_idle()

    async def _connect(self) -> tuple[StreamReader, StreamWriter]:
        server_name = self._host if self._tls else None
        return await asyncio.open_connection(self._host, self._port, ssl=self._tls, server_hostname=server_name)

    async def _exchange(self, reader: StreamReader, writer: StreamWriter, request: bytes) -> tuple[int, bytes]:
        is_kept = False
        try:
            writer.write(request)
            status, fields = await self._head(reader)
            while status < 200:
                status, fields = await self._head(reader)
            body = await self._body(reader, fields)
            is_kept = fields.get(b"connection", b"") != b"close" and fields[b""] == b"http/1.1" and self.is_kept
        finally:
            if is_kept:
                self._idle.append((reader, writer))
            else:
                writer.transport.abort()
        return status, body

    @staticmethod
    async def _head(reader: StreamReader) -> tuple[int, dict[bytes, bytes]]:
        """The status, and the header fields with lower-case names; the HTTP version has an empty name."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except IncompleteReadError as error:
            if error.partial:
                raise
            raise _Stale("the server closed the connection") from None
        except (ConnectionResetError, BrokenPipeError):
            raise _Stale("the server reset the connection") from None
        first, *lines = head[:-4].lower().split(b"\r\n")
        version, status, *_ = first.split(b" ", 2)
        fields = {b"": version}
        for line in lines:
            name, _, value = line.partition(b":")
            fields[name] = value.strip()
        return int(status), fields

    @staticmethod
    async def _body(reader: StreamReader, fields: dict[bytes, bytes]) -> bytes:
        if b"chunked" not in fields.get(b"transfer-encoding", b""):
            if b"content-length" not in fields:
                raise ValueError("no length")
            return await reader.readexactly(_bounded(int(fields[b"content-length"])))
        body = bytearray()
        while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
            _bounded(len(body) + size)
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        while await reader.readuntil(b"\r\n") != b"\r\n":
            pass  # fields after the body say nothing that is needed
        return bytes(body)


def _bounded(size: int) -> int:
    if not 0 <= size <= BODY_LIMIT:
        raise ValueError("a body of an impossible length")
    return size


CALL_SECONDS = 25
"""Longer than the longest poll, so that only a server that cannot be reached causes a timeout."""
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
"""Codes of temporary errors."""
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
    """SQS understood the call, and refuses it."""


class Address(msgspec.Struct, frozen=True):
    """The address of a queue, and where to send calls for it."""

    queue_url: str
    is_fifo: bool
    region: str
    host: str
    port: int
    is_tls: bool
    path: str

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.is_tls else 80) else f"{host}:{self.port}"


def address_of(uri: str, environment: Mapping[str, str]) -> Address:
    """The address of the queue with this URL; InvalidArgument if it is not an SQS queue."""
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
        # An invalid host name is refused here: later it would look like a server that cannot be reached.
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
    """Calls for one queue."""

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
        """Make a call, and return the JSON of its answer.

        Unavailable: it may succeed later. QueueNotFound, FailedPrecondition: not before something is changed. Refusal: never.
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
            # Its text may contain what was signed, including a session token.
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
        self._http.close()


def _code(answer: bytes) -> tuple[str, str]:
    """The error's code, without the prefix that some versions of SQS add, and its text."""
    try:
        error = _decode_error(answer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # A call that is refused early may be answered in the older protocol.
        found = _XML_CODE.search(answer)
        return (found[1].decode() if found else ""), ""
    return error.type.rpartition("#")[2].removeprefix("AWS.SimpleQueueService."), error.message
