"""`penstock completion bash|zsh|fish`: a script that lets a shell complete commands, flags and the names of what exists.

The commands with their flags and arguments are read from argparse. Each script holds a table of them and a small function that
walks over the words typed so far. For names of topics, contexts and the like it calls `penstock completion --names KIND`, with
the flags that choose the broker.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.cli import contexts
from penstock.cli.command import Parser
from penstock.cli.main import COMMANDS, parser_of
from penstock.cli.output import say
from penstock.cli.session import run as run_with_client
from penstock.errors import InvalidArgument

if TYPE_CHECKING:
    from penstock.client.pubsub import PubSub


def configure(parser: Parser) -> None:
    """Add the shell, and the hidden flags that the scripts use."""
    parser.add_argument("shell", metavar="SHELL", choices=[*SCRIPTS], nargs="?", help=f"one of {', '.join(SCRIPTS)}")
    parser.add_argument("--names", metavar="KIND", choices=KINDS, help=argparse.SUPPRESS)
    for flag in TARGET:
        parser.add_argument(flag, help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(found: argparse.Namespace) -> int:
    """Print the script, or the names."""
    if found.names == "contexts":
        return _say_sorted(contexts.load(os.environ).contexts)
    if found.names is not None:
        return run_with_client(found, lambda pubsub: _say_names(pubsub, found.names))
    if found.shell is None:
        raise InvalidArgument("no shell is named", hint=f"penstock completion {'|'.join(SCRIPTS)}")
    say(SCRIPTS[found.shell](entries(parser_of([command.name for command in COMMANDS]))).rstrip())
    return 0


async def _say_names(pubsub: PubSub, kind: str) -> int:
    match kind:
        case "topics":
            names = [one.name for one in await pubsub.topics()]
        case "subscriptions":
            names = [one.name for one in await pubsub.subscriptions()]
        case "snapshots":
            names = [one.name for one in await pubsub.snapshots()]
        case "backlogs":
            names = [*{one.name for one in await pubsub.subscriptions()} | {*await pubsub.queues()}]
        case _:
            names = await pubsub.queues()
    return _say_sorted(names)


def _say_sorted(names: Iterable[str]) -> int:
    if listed := sorted(names):
        say("\n".join(listed))
    return 0


KINDS = ("topics", "subscriptions", "queues", "snapshots", "backlogs", "contexts")
"""The kinds of names that can be listed. A backlog is that of a subscription or of a queue."""
FILES, DIRECTORIES = "@files", "@dirs"
_CHOICE = re.compile(r"[\w-]+(\|[\w-]+)+")
_PLACES = {"FILE": FILES, "PATH": FILES, "DIR": DIRECTORIES}


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag. `values` is None if it takes none, '' if any text may follow."""

    name: str
    help: str
    values: str | None = None
    """The possible values: words separated by commas, `@files`, `@dirs`, or `@topics` and the like."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A command: the words that call it, and what may follow."""

    words: tuple[str, ...]
    help: str
    flags: tuple[Flag, ...]
    slots: tuple[str, ...]
    """The possible values of each argument, as in `Flag.values`; a repeatable one is last, with a `+`."""
    commands: tuple[tuple[str, str], ...]
    """Its sub-commands, each with its help."""

    @property
    def route(self) -> str:
        """The words, separated by single spaces."""
        return " ".join(self.words)


def entries(parser: argparse.ArgumentParser, words: tuple[str, ...] = (), text: str = "") -> Iterator[Entry]:
    """The command of a parser and all its sub-commands."""
    flags: list[Flag] = []
    slots: list[str] = []
    below: list[tuple[str, str, argparse.ArgumentParser]] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            below += [(name, helps.get(name, ""), child) for name, child in action.choices.items()]
        elif action.help == argparse.SUPPRESS:
            continue
        elif action.option_strings:
            values = None if action.nargs == 0 else _values(action, words)
            flags += [Flag(name, _plain(action.help), values) for name in action.option_strings if name.startswith("--")]
        else:
            slots.append(_values(action, words) + ("+" if action.nargs in {"+", "*"} else ""))
    yield Entry(words, text, tuple(flags), tuple(slots), tuple((name, _plain(text)) for name, text, _ in below))
    for name, help_text, child in below:
        yield from entries(child, (*words, name), help_text)


def _values(action: argparse.Action, words: Sequence[str]) -> str:
    if action.choices is not None:
        return ",".join(map(str, action.choices))
    shown = action.metavar if isinstance(action.metavar, str) else action.dest
    if _CHOICE.fullmatch(shown):
        return shown.replace("|", ",")
    word = shown.upper()
    if word in _PLACES:
        return _PLACES[word]
    if word == "NAME" and not action.option_strings and words:
        # `topic delete NAME` is about a topic that exists, `topic create NAME` about one that does not.
        word = "" if words[-1] == "create" else "BACKLOG" if words[0] == "explain" else words[0].upper()
    elif words[-1:] in {("create",), ("add",)} and words[0].upper() == word and not action.option_strings:
        word = ""
    kind = f"{word.lower()}s"
    # Topics of the hub are not topics of the broker.
    return f"@{kind}" if kind in KINDS and words[:1] != ("hub",) else ""


def _plain(text: str | None) -> str:
    """A help text in one line, as in argparse's output."""
    return re.sub(r"\s+", " ", (text or "").replace("%%", "%"))


TARGET = ("--server", "--context", "--data-dir", "--token", "--project", "--ca")
"""The flags that choose the broker."""

_BASH = r"""# Completion of `penstock` for bash. Put this into ~/.bashrc:  source <(penstock completion bash)
_penstock_table() {
    commands="" flags="" values="" slots=""
    case "$1" in
@TABLE@
    esac
}

_penstock() {
    local line="${COMP_LINE:0:COMP_POINT}" route="" flag="" kind="" current word IFS=$' \t\n'
    local commands flags values slots index=1 slot=0 last
    local -a words target
    COMPREPLY=()
    # Our own words: bash also cuts at = and :, which flags and addresses are full of.
    read -ra words <<< "$line"
    [[ "$line" == *[[:space:]] ]] && words+=("")
    last=$(( ${#words[@]} - 1 ))
    current="${words[last]}"
    _penstock_table ""
    while (( index < last )); do
        word="${words[index]}"
        if [[ "$word" == --*=* ]]; then
            case "${word%%=*}" in @TARGET@) target+=("$word") ;; esac
        elif [[ "$word" == -* ]]; then
            if [[ " $values " == *" $word="* ]]; then
                index=$(( index + 1 ))
                if (( index == last )); then
                    flag="$word"
                else
                    case "$word" in @TARGET@) target+=("$word=${words[index]}") ;; esac
                fi
            fi
        elif [[ -n "$commands" ]]; then
            route="${route:+$route }$word"
            _penstock_table "$route"
        else
            slot=$(( slot + 1 ))
        fi
        index=$(( index + 1 ))
    done
    if [[ "$current" == --*=* ]]; then
        flag="${current%%=*}"
        current="${current#*=}"
    fi
    if [[ -n "$flag" ]]; then
        for word in $values; do
            [[ "$word" == "$flag="* ]] && kind="${word#*=}"
        done
    elif [[ "$current" == -* ]]; then
        kind="${flags// /,}"
    elif [[ -n "$commands" ]]; then
        kind="${commands// /,}"
    else
        index=0
        for word in $slots; do
            if (( index == slot )) || [[ "$word" == *+ ]]; then
                kind="${word%+}"
                break
            fi
            index=$(( index + 1 ))
        done
        [[ "$kind" == "-" ]] && kind=""
    fi
    case "$kind" in
    "@files" | "@dirs")
        compopt -o filenames 2> /dev/null
        IFS=$'\n'
        COMPREPLY=($(compgen "$([[ "$kind" == "@dirs" ]] && echo -d || echo -f)" -- "$current"))
        ;;
    "@"*)
        kind="$("${words[0]}" completion --names "${kind#@}" ${target[@]+"${target[@]}"} 2> /dev/null)"
        COMPREPLY=($(compgen -W "$kind" -- "$current"))
        ;;
    *)
        COMPREPLY=($(compgen -W "${kind//,/ }" -- "$current"))
        ;;
    esac
}

complete -F _penstock penstock
"""

_ZSH = r"""#compdef penstock
# Completion of `penstock` for zsh. Put this into ~/.zshrc, after compinit:  source <(penstock completion zsh)
_penstock_table() {
    verbs=() flags=() values=() slots=()
    case "$1" in
@TABLE@
    esac
}

_penstock() {
    local current="${words[CURRENT]}" route="" flag="" kind="" word
    local -i index=2 slot=1
    local -a verbs flags values slots target
    _penstock_table ""
    while (( index < CURRENT )); do
        word="${words[index]}"
        if [[ "$word" == --*=* ]]; then
            case "${word%%=*}" in (@TARGET@) target+=("$word") ;; esac
        elif [[ "$word" == -* ]]; then
            if (( ${values[(I)${word}=*]} )); then
                (( index += 1 ))
                if (( index == CURRENT )); then
                    flag="$word"
                else
                    case "$word" in (@TARGET@) target+=("$word=${words[index]}") ;; esac
                fi
            fi
        elif (( ${#verbs} )); then
            route="${route:+$route }$word"
            _penstock_table "$route"
        else
            (( slot += 1 ))
        fi
        (( index += 1 ))
    done
    if [[ "$current" == --*=* ]]; then
        flag="${current%%=*}"
        compset -P '*='
    fi
    if [[ -n "$flag" ]]; then
        word="${values[(r)${flag}=*]}"
        kind="${word#*=}"
    elif [[ "$current" == -* ]]; then
        _describe -o 'flag' flags
        return
    elif (( ${#verbs} )); then
        _describe 'command' verbs
        return
    elif (( ${#slots} )); then
        if (( slot <= ${#slots} )); then kind="${slots[slot]}"; elif [[ "${slots[-1]}" == *+ ]]; then kind="${slots[-1]}"; fi
        kind="${kind%+}"
    fi
    case "$kind" in
        (@files) _files ;;
        (@dirs) _files -/ ;;
        (@*) compadd -- ${(f)"$("${words[1]}" completion --names "${kind#@}" "${target[@]}" 2> /dev/null)"} ;;
        (?*) compadd -- ${(s:,:)kind} ;;
    esac
}

if [[ "${funcstack[1]}" == "_penstock" ]]; then
    _penstock "$@"
else
    compdef _penstock penstock
fi
"""

_FISH = r"""# Completion of `penstock` for fish:  penstock completion fish > ~/.config/fish/completions/penstock.fish
set -g __penstock_routes @ROUTES@
set -g __penstock_valued @VALUED@

function __penstock_at --description 'Whether the words typed so far call this command'
    set -l route
    set -l skips 0
    set -l words (commandline -opc)
    set -e words[1]
    for word in $words
        if test $skips = 1
            set skips 0
        else if string match -q -- '-*' $word
            contains -- $word $__penstock_valued; and set skips 1
        else
            set -l longer (string join -- ' ' $route $word)
            contains -- "$longer" $__penstock_routes; or break
            set route $longer
        end
    end
    test "$route" = "$argv[1]"
end

function __penstock_names --description 'The names of what exists, at the broker that the words name'
    set -l target
    set -l flag
    set -l words (commandline -opc)
    set -e words[1]
    for word in $words
        if test -n "$flag"
            set -a target "$flag=$word"
            set flag
        else if contains -- $word @TARGET@
            set flag $word
        else if contains -- (string replace -r -- '=.*' '' $word) @TARGET@
            set -a target $word
        end
    end
    penstock completion --names $argv[1] $target 2>/dev/null
end

complete -c penstock -f
@TABLE@
"""


def bash(tree: Iterable[Entry]) -> str:
    """The script for bash."""

    def row(entry: Entry) -> str:
        return (
            f"    {_quoted(entry.route)})\n"
            f"        commands={_quoted(' '.join(name for name, _ in entry.commands))}\n"
            f"        flags={_quoted(' '.join(flag.name for flag in entry.flags))}\n"
            f"        values={_quoted(' '.join(_valued(entry)))}\n"
            f"        slots={_quoted(' '.join(slot or '-' for slot in entry.slots))}\n"
            "        ;;"
        )

    return _filled(_BASH, TABLE="\n".join(map(row, tree)), TARGET=" | ".join(TARGET))


def zsh(tree: Iterable[Entry]) -> str:
    """The script for zsh, which shows the help beside each word."""

    def described(word: str, text: str) -> str:
        return _quoted(f"{word}:{text}")

    def row(entry: Entry) -> str:
        return (
            f"    ({_quoted(entry.route)})\n"
            f"        verbs=({' '.join(described(*command) for command in entry.commands)})\n"
            f"        flags=({' '.join(described(flag.name, flag.help) for flag in entry.flags)})\n"
            f"        values=({' '.join(map(_quoted, _valued(entry)))})\n"
            f"        slots=({' '.join(map(_quoted, entry.slots))})\n"
            "        ;;"
        )

    return _filled(_ZSH, TABLE="\n".join(map(row, tree)), TARGET="|".join(TARGET))


def fish(tree: Iterable[Entry]) -> str:
    """The script for fish, which shows the help beside each word."""
    listed = list(tree)
    lines = [line for entry in listed for line in _fish_lines(entry)]
    valued = sorted({flag.name for entry in listed for flag in entry.flags if flag.values is not None})
    routes = [_fish_quoted(entry.route) for entry in listed if entry.words]
    return _filled(_FISH, TABLE="\n".join(lines), TARGET=" ".join(TARGET), ROUTES=" ".join(routes), VALUED=" ".join(valued))


def _fish_lines(entry: Entry) -> Iterable[str]:
    condition = _fish_quoted(f'__penstock_at "{entry.route}"')
    start = f"complete -c penstock -n {condition}"
    for name, text in entry.commands:
        yield f"{start} -a {name} -d {_fish_quoted(text)}"
    for flag in entry.flags:
        yield f"{start} -l {flag.name[2:]}{_fish_values(flag)} -d {_fish_quoted(flag.help)}"
    for slot in dict.fromkeys(slot.rstrip("+") for slot in entry.slots):
        if slot in {FILES, DIRECTORIES}:
            yield f"{start} -F"
        elif slot:
            yield f"{start} -a {_fish_words(slot)}"


def _fish_values(flag: Flag) -> str:
    if flag.values is None:
        return ""
    if flag.values in {FILES, DIRECTORIES}:
        return " -r -F"
    return f" -x -a {_fish_words(flag.values)}" if flag.values else " -x"


def _fish_words(values: str) -> str:
    return _fish_quoted(f"(__penstock_names {values[1:]})" if values.startswith("@") else values.replace(",", " "))


def _valued(entry: Entry) -> list[str]:
    return [f"{flag.name}={flag.values}" for flag in entry.flags if flag.values is not None]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _filled(template: str, **parts: str) -> str:
    for name, text in parts.items():
        template = template.replace(f"@{name}@", text)
    return template


SCRIPTS: Mapping[str, Callable[[Iterable[Entry]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
