"""The shape of the transforms that a topic or a subscription puts its messages through."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from penstock.errors import InvalidArgument

MAX_TRANSFORMS = 5
MAX_CODE_BYTES = 20 * 1024

_FUNCTION_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*", re.ASCII)


def check_transforms(transforms: Sequence[Any], field: str = "message_transforms") -> None:
    """Each names exactly one kind of transform and all that this kind needs; functions have names of their own."""
    if len(transforms) > MAX_TRANSFORMS:
        raise InvalidArgument(f"{field} has {len(transforms)} entries, wanted at most {MAX_TRANSFORMS}")
    functions: set[str] = set()
    for index, transform in enumerate(transforms):
        where = f"{field}[{index}]"
        match transform.WhichOneof("transform"):
            case "javascript_udf":
                _check_function(transform.javascript_udf, where)
                if transform.javascript_udf.function_name in functions:
                    name = transform.javascript_udf.function_name
                    raise InvalidArgument.of(
                        f"{where}.javascript_udf.function_name", name, "a name that no other function here has"
                    )
                functions.add(transform.javascript_udf.function_name)
            case "compression":
                _check_compression(transform.compression, where)
            case "ai_inference":
                if not transform.ai_inference.endpoint:
                    raise InvalidArgument(f"{where}.ai_inference.endpoint is missing, wanted the name of an endpoint")
            case _:
                raise InvalidArgument(f"{where} is empty, wanted javascript_udf, compression or ai_inference")


def _check_function(function: Any, where: str) -> None:
    if not _FUNCTION_NAME.fullmatch(function.function_name):
        raise InvalidArgument.of(
            f"{where}.javascript_udf.function_name", function.function_name, "the name of a JavaScript function"
        )
    size = len(function.code.encode())
    if not 0 < size <= MAX_CODE_BYTES:
        raise InvalidArgument(f"{where}.javascript_udf.code is {size} bytes long, wanted 1 to {MAX_CODE_BYTES}")
    if not re.search(rf"\b{re.escape(function.function_name)}(?![\w$])", function.code):
        raise InvalidArgument.of(
            f"{where}.javascript_udf.code", function.code, f"code that defines the function {function.function_name}"
        )


def _check_compression(compression: Any, where: str) -> None:
    for name in ("compression_algorithm", "compression_mode"):
        field = compression.DESCRIPTOR.fields_by_name[name]
        known = [value.name for value in field.enum_type.values if value.number]
        if field.enum_type.values_by_number.get(getattr(compression, name)) is None or not getattr(compression, name):
            raise InvalidArgument.of(f"{where}.compression.{name}", getattr(compression, name), " or ".join(known))
