"""Read the settings from all sources: flags override the environment, that overrides the file, and that the defaults.

Each value remembers its source, so that an error names the flag, the variable or the key to correct.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from penstock.config.settings import ENVIRONMENT_PREFIX, OPTIONS, Option, Settings, check_together
from penstock.config.values import PATH
from penstock.errors import InvalidArgument

DEFAULT_FILE = "penstock.toml"
FILE_VARIABLE = f"{ENVIRONMENT_PREFIX}CONFIG"
DEFAULT = "default"
CLIENT_VARIABLES = frozenset(f"{ENVIRONMENT_PREFIX}{name}" for name in ("CA", "CONTEXT", "SERVER", "TOKEN"))
"""Variables that client commands read. They are not settings of the server, although they look like some."""


class ConfiguredValue(NamedTuple):
    """A value that was set."""

    value: object
    origin: str


def find_file(flag: str | Path | None, environ: Mapping[str, str]) -> Path | None:
    """The file to read: the one of the flag, of PENSTOCK_CONFIG, `penstock.toml` here if it exists, or none."""
    if flag is not None:
        return Path(flag)
    if environ.get(FILE_VARIABLE):
        return Path(environ[FILE_VARIABLE])
    here = Path(DEFAULT_FILE)
    return here if here.is_file() else None


def load(
    flags: Mapping[str, object], environ: Mapping[str, str], file: Path | None = None, *, prefix: str = ""
) -> tuple[Settings, dict[str, str]]:
    """The settings and the origin of each. `flags` has what was given, by option name; None and absent mean not given.

    `prefix` is the part that the names of flags omit.
    """
    levels = [_from_flags(flags, prefix), _from_environment(environ), _from_file(file) if file is not None else {}]
    given: dict[str, ConfiguredValue] = {}
    for level in levels:
        overruled = _overruled(given)
        given |= {name: found for name, found in level.items() if name not in given and name != overruled}
    origins = {option.name: given[option.name].origin if option.name in given else DEFAULT for option in OPTIONS}
    for name in ("tls_cert", "tls_key"):
        if name in given and isinstance(path := given[name].value, Path) and not path.is_file():
            raise InvalidArgument.of(given[name].origin, str(path), "a file that exists")

    def label(name: str) -> str:
        return name if origins[name] == DEFAULT else origins[name]

    values: dict[str, Any] = {name: found.value for name, found in given.items()}
    check_together({option.name: values.get(option.name, option.default) for option in OPTIONS}, label)
    return Settings(**values), origins


def _overruled(above: Mapping[str, ConfiguredValue]) -> str | None:
    """Drop values that a higher source makes irrelevant: `--memory` beside a file with a data_dir is a choice, not a conflict."""
    if "data_dir" in above:
        return "memory"
    return "data_dir" if "memory" in above and above["memory"].value is True else None


def _from_flags(flags: Mapping[str, object], prefix: str) -> dict[str, ConfiguredValue]:
    found: dict[str, ConfiguredValue] = {}
    known = {option.name: option for option in OPTIONS}
    for name, value in flags.items():
        if name not in known:
            raise _unknown(f"--{name.replace('_', '-')}", name.replace("_", "-"), {o.flag[2:]: o.flag for o in OPTIONS})
        if value is not None:
            option, flag = known[name], known[name].short_flag(prefix)
            found[name] = ConfiguredValue(option.kind.read(value, flag, is_text=True), flag)
    return found


def _from_environment(environ: Mapping[str, str]) -> dict[str, ConfiguredValue]:
    found: dict[str, ConfiguredValue] = {}
    known = {option.variable: option for option in OPTIONS}
    for variable, text in environ.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable == FILE_VARIABLE or variable in CLIENT_VARIABLES:
            continue
        option = known.get(variable)
        if option is None:
            # Clients and tools share the prefix, so an unknown name is refused only if it looks like a typing error.
            if get_close_matches(variable, known, 1, cutoff=0.85):
                raise _unknown(variable, variable, {name: name for name in known})
        elif text and not (option.name == "port" and text.startswith("tcp://")):
            # An empty variable counts as not set: container files leave them so. And for a service called `penstock` Kubernetes
            # gives every container PENSTOCK_PORT=tcp://10.0.0.1:8085, which is about another server.
            found[option.name] = ConfiguredValue(option.kind.read(text, variable, is_text=True), variable)
    return found


def _from_file(file: Path) -> dict[str, ConfiguredValue]:
    known = {option.key: option for option in OPTIONS}
    nearest = {**{o.name: _shown_key(o.key) for o in OPTIONS}, **{o.key: _shown_key(o.key) for o in OPTIONS}}
    found: dict[str, ConfiguredValue] = {}
    for key, value in _keys(
        _toml(file), {option.key[:at] for option in OPTIONS for at, sign in enumerate(option.key) if sign == "."}
    ):
        option = known.get(key)
        origin = f"{file}: {_shown_key(key)}"
        if option is None:
            raise _unknown(origin, key, nearest)
        found[option.name] = ConfiguredValue(_resolved(option, option.kind.read(value, origin), file), origin)
    return found


def _toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgument(f"cannot read the configuration file {str(file)!r}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # not text, not TOML, or nested too deep
        raise InvalidArgument(f"{file} is not a TOML file: {error}") from None


def _keys(content: Mapping[str, Any], sections: set[str], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Every key with its section: `server.port`. A table that is not a section is itself an unknown key."""
    for name, value in content.items():
        key = prefix + name
        if key in sections and isinstance(value, dict):
            yield from _keys(value, sections, f"{key}.")
        else:
            yield key, value


def _resolved(option: Option, value: object, file: Path) -> object:
    """Resolve a relative path in a file from the directory of that file."""
    return file.parent / value if option.kind is PATH and isinstance(value, Path) else value


def _shown_key(key: str) -> str:
    section, dot, name = key.rpartition(".")
    return f"[{section}] {name}" if dot else name


def _unknown(origin: str, name: str, known: Mapping[str, str]) -> InvalidArgument:
    near = get_close_matches(name, known, 1, cutoff=0.5)
    inner = name.rpartition(".")[2]
    near = near or get_close_matches(inner, known, 1, cutoff=0.5)
    return InvalidArgument(
        f"{origin} is not a setting", hint=f"did you mean {known[near[0]]}?" if near else "`penstock config` lists them all"
    )
