"""Transforms: JavaScript functions of users that change messages before they are stored or delivered.

    function redact(message, metadata) {      // metadata: message_id, publish_time, ordering_key, as far as known
      const body = JSON.parse(message.data);  // message: data, always text, and attributes
      delete body.ssn;
      message.data = JSON.stringify(body);
      return message;                         // or null: the message is dropped
    }

Such code comes from whoever may configure a topic, and is treated as hostile: it runs in a process of its own, without files,
network or other processes, for at most half a second of processor time a message.

Calls block: about 0.1 ms for a small script, 2 s for the worst that a script can do. They are safe from any thread, and belong in
a worker thread, never in the thread of an event loop. A few scripts run side by side; where more want to, those that have used
little time go before slow ones.

**What a script can keep from one message to the next.** Nothing by ordinary means: its top-level code runs for each message,
built-in objects are frozen, globals are removed. A global `let` made through indirect `eval` stays until the context is
replaced. No script sees anything of another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import msgspec

from penstock.errors import InvalidArgument, TransformFailed
from penstock.transforms.sandbox import ChildEnded, Sandbox, Source
from penstock.values.message import MAX_MESSAGE_BYTES, RESERVED_PREFIX, check_attributes

MAX_CODE_BYTES = 20 * 1024
MAX_NAME_CHARACTERS = 256
MAX_TRANSFORMS = 5


@dataclass(frozen=True, slots=True)
class Transformed:
    """The result of a transform. Ordering key and metadata never change."""

    data: bytes
    attributes: dict[str, str]


@dataclass(frozen=True, slots=True)
class Step:
    """One transform as configured."""

    code: str
    function_name: str
    disabled: bool = False


class _Returned(msgspec.Struct):
    data: str
    attributes: dict[str, str]


class Transform:
    """A checked function, created by `compile_transform`. It costs nothing while it is not used, and need not be closed."""

    __slots__ = ("_sandbox", "_source")

    def __init__(self, source: Source, sandbox: Sandbox) -> None:
        self._source = source
        self._sandbox = sandbox

    @property
    def function_name(self) -> str:
        """The name of the function that is called."""
        return self._source.function_name

    def apply(self, data: bytes, attributes: Mapping[str, str], metadata: Mapping[str, str]) -> Transformed | None:
        """The message as the function returns it; None if it drops it.

        Attributes that the function leaves out are gone. Those whose key is reserved may be kept or removed, not changed.

        Raises:
            TransformFailed: and then the message must not be stored or delivered as it was.
            Unavailable: the engine's process cannot be started now.
        """
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise self._failed(f"needs data that is UTF-8 text: byte {error.start} is not") from None
        message = {"data": text, "attributes": attributes}
        try:
            letter, answer = self._sandbox.apply(self._source, msgspec.json.encode((message, metadata)))
        except ChildEnded as ended:
            raise self._failed(ended.problem) from None
        limits = self._sandbox.limits
        match letter:
            case b"M":
                return self._checked(answer, attributes)
            case b"D":
                return None
            case b"T":
                raise self._failed(f"used more than {limits.cpu:g} s of processor time")
            case b"O":
                raise self._failed(f"used more than {limits.memory >> 20} MiB of memory")
            case _:
                raise self._failed(answer.decode())

    def _checked(self, answer: bytes, given: Mapping[str, str]) -> Transformed:
        try:
            returned = msgspec.json.decode(answer, type=_Returned)
            data = returned.data.encode()
        except (msgspec.DecodeError, UnicodeError):
            raise self._failed("returned text that UTF-8 cannot encode (a lone surrogate)") from None
        # A broker's own attributes, such as a schema's revision, pass through; scripts cannot create any.
        kept: dict[str, str] = {}
        other: dict[str, str] = {}
        for key, value in returned.attributes.items():
            (kept if key.startswith(RESERVED_PREFIX) and given.get(key) == value else other)[key] = value
        try:
            attributes, size = check_attributes(other, "attributes")
        except InvalidArgument as error:
            raise self._failed(f"returned a wrong attribute: {error}") from None
        size += len(data) + sum(len(key.encode()) + len(value.encode()) for key, value in kept.items())
        if size > MAX_MESSAGE_BYTES:
            raise self._failed(f"returned {size} bytes, expected at most {MAX_MESSAGE_BYTES}")
        if not size:
            raise self._failed("returned an empty message, expected data or at least one attribute, or null to drop it")
        return Transformed(data, attributes | kept)

    def _failed(self, problem: str) -> TransformFailed:
        return TransformFailed(self._source.function_name, problem)


class Chain:
    """Several transforms in a row; the first one that drops the message ends the chain."""

    __slots__ = ("_transforms",)

    def __init__(self, transforms: Sequence[Transform]) -> None:
        self._transforms = tuple(transforms)

    def __len__(self) -> int:
        return len(self._transforms)

    def apply(self, data: bytes, attributes: Mapping[str, str], metadata: Mapping[str, str]) -> Transformed | None:
        """The message after all transforms; None if one drops it. Raises TransformFailed, as `Transform.apply` does."""
        current: Transformed | None = Transformed(data, dict(attributes))
        for transform in self._transforms:
            if current is None:
                break
            current = transform.apply(current.data, current.attributes, metadata)
        return current


def compile_transform(code: str, function_name: str, *, sandbox: Sandbox | None = None) -> Transform:
    """A transform that calls the function of that name in `code`.

    Without `sandbox`, this process's own is used, which starts with the first transform and ends with the process.

    Raises:
        InvalidArgument: the code is too long, does not parse (with the line), throws, or holds no such function.
        Unimplemented: the engine is not installed.
    """
    source = Source(_checked_code(code), _checked_name(function_name))
    sandbox = sandbox or _own_sandbox()
    try:
        problem = sandbox.check(source)
    except ChildEnded as ended:
        problem = f"running it {ended.problem}"
    if problem:
        raise InvalidArgument(f"code of transform {function_name}: {problem}")
    return Transform(source, sandbox)


def compile_chain(steps: Sequence[Step], *, sandbox: Sandbox | None = None) -> Chain:
    """The chain of all steps that are not disabled. Disabled ones are checked too: enabling them must not fail later.

    Raises:
        InvalidArgument: as `compile_transform`, or there are more than MAX_TRANSFORMS steps.
    """
    if len(steps) > MAX_TRANSFORMS:
        raise InvalidArgument(f"there are {len(steps)} transforms, expected at most {MAX_TRANSFORMS}")
    compiled = [compile_transform(step.code, step.function_name, sandbox=sandbox) for step in steps]
    return Chain([transform for transform, step in zip(compiled, steps, strict=True) if not step.disabled])


@cache
def _own_sandbox() -> Sandbox:
    return Sandbox()


def _checked_code(code: object) -> str:
    if not isinstance(code, str) or not code:
        raise InvalidArgument.of("code", code, "JavaScript that defines the function")
    try:
        size = len(code.encode())
    except UnicodeEncodeError:
        raise InvalidArgument.of("code", code, "text that UTF-8 can encode (no lone surrogates)") from None
    if size > MAX_CODE_BYTES:
        raise InvalidArgument(f"code is {size} bytes long, expected at most {MAX_CODE_BYTES}")
    if "\0" in code:
        raise InvalidArgument.of("code", code, "text without NUL characters")
    return code


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or len(name) > MAX_NAME_CHARACTERS or not name.replace("$", "_").isidentifier():
        raise InvalidArgument.of("function_name", name, f"a JavaScript identifier of at most {MAX_NAME_CHARACTERS} characters")
    return name
