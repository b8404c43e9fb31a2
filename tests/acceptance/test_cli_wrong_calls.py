"""Wrong calls of every command: the exit code, and a few lines that say what is wrong. Each runs in this process."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from penstock.cli.main import COMMANDS
from tests.acceptance.command import Penstock

GONE = "http://127.0.0.1:1"
APP = """
from penstock.worker import Worker

worker = Worker()
nothing = None

@worker.task("emails")
def send_email(to):
    pass
"""
FILES = {
    "config.json": json.dumps({"queues": [{"queueUri": "penstock:///queues/orders"}]}),
    "app.py": APP,
    "package/tasks.py": APP,
    "empty.py": "from penstock.worker import Worker\nworker = Worker()\n",
    "bare.py": "",
    "lacking.py": "import no_such_library\n",
}

# The line, its exit code, and what it prints to the standard error. These name no server, or one that is not there.
WITHOUT_SERVER = [
    ("serv", 2, "penstock: unknown command 'serv'; did you mean serve?"),
    ("help topic crate", 2, "penstock topic: unknown command 'crate'; did you mean create?"),
    ("zzz", 2, "penstock: unknown command 'zzz'"),
    ("sub list", 2, "penstock: unknown command 'sub'; did you mean subscription?"),
    ("topic ls", 2, "penstock topic: unknown command 'ls'; did you mean list?"),
    (
        "--json topic list",
        2,
        "penstock: unknown flag --json; the flags of a command come after its name: penstock COMMAND … --json",
    ),
    ("--data-dir x topic list", 2, "penstock: unknown flag --data-dir; the flags of a command come after its name"),
    ("topic --json list", 2, "penstock topic: unknown flag --json; the flags of a command come after its name"),
    ("serve --prot 1", 2, "penstock serve: unknown flag --prot; did you mean --port?"),
    ("serve --grpcport=1", 2, "penstock serve: unknown flag --grpcport=1; did you mean --grpc-port?"),
    ("serve --mem", 2, "penstock serve: unknown flag --mem; did you mean --memory?"),
    ("serve now", 2, "penstock serve: unknown argument now"),
    ("serve a\u202eb", 2, "penstock serve: unknown argument a\\u202eb"),
    ("serve --port", 2, "penstock serve: argument --port: expected one argument"),
    ("serve --port 70000", 2, "penstock: --port is '70000', expected a whole number from 0 to 65535"),
    ("serve --host 0.0.0.0", 2, "penstock: --host is '0.0.0.0': all clients that reach this server"),
    ("serve --memory --data-dir d", 2, "penstock: --memory and --data-dir exclude each other"),
    ("config --config missing.toml", 2, "penstock: cannot read the configuration file 'missing.toml': No such file or directory"),
    ("token", 2, "penstock token: the following arguments are required: COMMAND"),
    ("token creat", 2, "penstock token: unknown command 'creat'; did you mean create?"),
    ("token create", 2, "penstock token create: the following arguments are required: --name"),
    ("journal", 2, "penstock journal: the following arguments are required: COMMAND"),
    ("journal cpy a b", 2, "penstock journal: unknown command 'cpy'; did you mean copy?"),
    ("journal copy a", 2, "penstock journal copy: the following arguments are required: TARGET"),
    ("journal copy a b", 2, "penstock: source is 'a', expected a data directory, or the address of a database"),
    (
        "journal copy postgresql://u:p@h/d b",
        2,
        "penstock: the address holds a password, which other users of this machine can see",
    ),
    ("nodes x", 2, "penstock nodes: unknown argument x"),
    (f"nodes --server {GONE}", 4, f"penstock: no connection to the server at {GONE}: "),
    ("token create --name x --verbs push", 2, "penstock: --verbs is 'push', expected a list, each 'publish' or 'consume'"),
    ("token create --name x --expires soon", 2, "penstock: --expires is 'soon', expected a duration"),
    ("token create --name x --expires 0", 2, "penstock: --expires is '0', expected a duration"),
    ("token create --name x --project a/b", 2, "penstock: project is 'a/b', expected"),
    ("token revoke xyz", 2, "penstock: this is not the id of a token"),
    ("topic", 2, "penstock topic: the following arguments are required: COMMAND"),
    ("topic crate x", 2, "penstock topic: unknown command 'crate'; did you mean create?"),
    ("topic create", 2, "penstock topic create: the following arguments are required: NAME"),
    ("topic create x --retention soon", 2, "penstock topic create: argument --retention: 'soon' is not a duration"),
    ("topic list --jsn", 2, "penstock topic list: unknown flag --jsn; did you mean --json?"),
    ("topic list --data-dir d --server s", 2, "penstock topic list: argument --server: not allowed with argument --data-dir"),
    ("topic list --data-dir missing", 2, "penstock: the data directory is 'missing', expected a directory that exists"),
    ("topic list --data-dir . --token x", 2, "penstock: --token is for a server, and this is a data directory"),
    ("topic list --server ftp://x", 2, "penstock: server is 'ftp://x', expected"),
    (f"topic list --server {GONE}", 4, f"penstock: no connection to the server at {GONE}: "),
    ("subscription create x", 2, "penstock subscription create: the following arguments are required: --topic"),
    ("subscription create x --topic t --max-attempts 0", 2, "penstock subscription create: argument --max-attempts: '0' is not"),
    ("subscription create x --topic t --max-bytes lots", 2, "penstock subscription create: argument --max-bytes: 'lots' is not"),
    ("subscription create x --topic t --overflow drop", 2, "penstock subscription create: unknown overflow 'drop'"),
    ("subscription list --topic", 2, "penstock subscription list: argument --topic: expected one argument"),
    ("subscription seek x", 2, "penstock subscription seek: one of the arguments --time --ago --offset --snapshot --start --end"),
    ("subscription seek x --time noon", 2, "penstock subscription seek: argument --time: 'noon' is not a time"),
    ("subscription seek x --start --end", 2, "penstock subscription seek: argument --end: not allowed with argument --start"),
    ("snapshot create x", 2, "penstock snapshot create: the following arguments are required: --subscription"),
    ("snapshot list now", 2, "penstock snapshot list: unknown argument now"),
    ("publish", 2, "penstock publish: the following arguments are required: TOPIC\n"),
    ("publish t x --attribute k", 2, "penstock publish: argument --attribute: 'k' is not name=value"),
    ("publish t x --priority 10", 2, "penstock publish: argument --priority: '10' is not a whole number from 0 to 9"),
    ("publish t x --count 0", 2, "penstock publish: argument --count: '0' is not a whole number, 1 or more"),
    ("publish t x --lines", 2, "penstock: DATA is given together with --file or --lines"),
    ("publish t x --file f", 2, "penstock: DATA is given together with --file or --lines"),
    ("publish t --lines --count 2", 2, "penstock: --lines is given together with --count"),
    ("pull", 2, "penstock pull: the following arguments are required: SUBSCRIPTION"),
    ("pull s --max many", 2, "penstock pull: argument --max: 'many' is not a whole number, 1 or more"),
    ("pull s --wait 2m", 2, "penstock pull: argument --wait: '2m' is more than a minute; --follow waits forever"),
    ("pull s --follow --no-ack", 2, "penstock pull: argument --no-ack: not allowed with argument --follow"),
    ("pull s --folow", 2, "penstock pull: unknown flag --folow; did you mean --follow?"),
    ("pull s --format yaml", 2, "penstock pull: unknown format 'yaml'; known: text, json, raw"),
    ("queue publish q x --type jsn", 2, "penstock queue publish: unknown type 'jsn'; did you mean json?"),
    ("queue publish q x --delay soon", 2, "penstock queue publish: argument --delay: 'soon' is not a duration"),
    ("queue consume q --peek", 2, "penstock queue consume: unknown flag --peek"),
    ("queue create x --priority 10", 2, "penstock queue create: argument --priority: '10' is not a whole number from 0 to 9"),
    ("queue create x --max-depth 0", 2, "penstock queue create: argument --max-depth: '0' is not a whole number, 1 or more"),
    ("queue list --all", 2, "penstock queue list: unknown flag --all"),
    ("dlq", 2, "penstock dlq: the following arguments are required: COMMAND"),
    ("dlq redriv q", 2, "penstock dlq: unknown command 'redriv'; did you mean redrive?"),
    ("dlq list q --where reason", 2, "penstock: invalid condition at 'reason' (character 1), expected a condition"),
    ("dlq list q --limit 0", 2, "penstock dlq list: argument --limit: '0' is not a whole number, 1 or more"),
    ("worker", 2, "penstock worker: the following arguments are required: MODULE:NAME\ntry: penstock worker --help\n"),
    (
        "worker app",
        2,
        "the worker is 'app', expected MODULE:NAME, as in app:worker for the worker of app.py\ndid you mean app:worker?",
    ),
    ("worker app.py:worker", 2, "did you mean app:worker?"),
    ("worker ./package/tasks.py", 2, "did you mean package.tasks:worker?"),
    ("worker :worker", 2, "the worker is ':worker', expected MODULE:NAME"),
    ("worker app:", 2, "the worker is 'app:', expected MODULE:NAME"),
    ("worker app:worker.run", 2, "the worker is 'app:worker.run', expected MODULE:NAME"),
    ("worker ap:worker", 2, "penstock: there is no module 'ap'\ndid you mean app?\n"),
    ("worker no.such.module:worker", 2, "penstock: there is no module 'no.such.module'\nmodules are searched in"),
    ("worker app:wroker", 2, "penstock: the module 'app' has no 'wroker'\ndid you mean app:worker?\n"),
    ("worker bare:worker", 2, "penstock: the module 'bare' has no 'worker'\ncreate one there: worker = penstock.Worker()\n"),
    (
        "worker app:nothing",
        2,
        "penstock: app:nothing is of type NoneType, expected a penstock.Worker\ndid you mean app:worker?\n",
    ),
    (
        "worker app:send_email",
        2,
        "penstock: app:send_email is of type Task, expected a penstock.Worker\ndid you mean app:worker?\n",
    ),
    ("worker empty:worker", 1, "penstock: the worker has no tasks\n"),
    ("worker lacking:worker", 1, "penstock: the module 'lacking' cannot be imported: ModuleNotFoundError: No module named"),
    ("worker app:worker --concurrency 0", 2, "argument --concurrency: '0' is not a whole number from 1 to 10000"),
    ("worker app:worker --concurrency many", 2, "argument --concurrency: 'many' is not a whole number"),
    (
        "worker app:worker --queues emial",
        2,
        "penstock: no task uses the queue 'emial', expected some of emails\ndid you mean emails?\n",
    ),
    ("worker app:worker --queues ,", 2, "penstock: --queues is ',', expected names of queues, with commas in between\n"),
    ("worker app:worker --server ftp://host", 2, "penstock: server is 'ftp://host', expected the address of a server"),
    (f"worker app:worker --server {GONE}", 4, f"penstock: no connection to the server at {GONE}"),
    ("worker app:worker --log-level loud", 2, "unknown log_level 'loud'; known: debug, info, warning, error\n"),
    ("worker app:worker --reload", 2, "penstock worker: unknown flag --reload"),
    ("backup", 2, "required: TARGET"),
    ("restore backup", 2, "required: DIR"),
    ("verify nosuch", 2, "path is 'nosuch', expected the data directory of a broker, but it does not exist"),
    ("context ad", 2, "did you mean add?"),
    ("context use nosuch", 3, "`penstock context list` shows them"),
    ("status --limit 0", 2, "'0' is not a whole number, 1 or more"),
    (f"status --server {GONE}", 4, f"no connection to the server at {GONE}"),
    ("router seed --count 0", 2, "'0' is not a whole number, 1 or more"),
    ("router seed --groups many", 2, "known: unique, 1of8, single"),
    ("router seed --endpont fast", 2, "did you mean --endpoint"),
    ("router statsu", 2, "did you mean status?"),
    ("router", 2, "required: COMMAND"),
    ("router run", 2, "there is no configuration\ngive --config FILE or --config-url URL, or set MESSAGE_ROUTER_CONFIG_URL"),
    ("router run --config nosuch.json", 2, "nosuch.json: it cannot be read: No such file or directory"),
    ("router run --config config.yaml", 2, "expected a file of JSON or TOML"),
    ("router run --config config.json --config-url http://host/config", 2, "not allowed with argument"),
    ("router run --config-url nonsense", 2, "expected a URL such as"),
    ("router run --confg config.json", 2, "did you mean --config"),
    ("router check", 2, "there is no configuration\ngive --config FILE or --config-url URL, or set MESSAGE_ROUTER_CONFIG_URL"),
    ("router check --config nosuch.json", 2, "nosuch.json: it cannot be read: No such file or directory"),
    ("router check --config config.yaml", 2, "expected a file of JSON or TOML"),
    ("router check --config config.json --config-url http://host/config", 2, "not allowed with argument"),
    ("router check --config-url nonsense", 2, "expected a URL such as"),
    ("router check --confg config.json", 2, "did you mean --config"),
    ("router run --config config.json --fifo sometimes", 2, "--fifo is 'sometimes', expected 'strict' or 'batch'"),
    ("router run --config config.json --fifoo strict", 2, "unknown flag --fifoo; did you mean --fifo?"),
    ("router run --config config.json --allow 300.0.0.0/8 --memory --port 0", 2, "'300.0.0.0/8', expected a network"),
    ("router run --config config.json --standby http://host", 2, "--standby is not a Redis such as redis://"),
    ("router run --config config.json --max-attempts 0", 2, "--max-attempts is '0'"),
    (
        "router run --config config.json --signing-secret-file nosuch --memory --port 0",
        1,
        "the file of the signing secret 'nosuch' cannot be read",
    ),
    ("router run --config config.json --host 0.0.0.0", 2, "all clients that reach this server"),
    (f"router status --server {GONE}", 4, "start it with `penstock router run`"),
    ("router status --server ftp://host", 2, "expected an address such as http://127.0.0.1:8095"),
    ("router status --server host:80", 2, "expected an address such as http://127.0.0.1:8095"),
    ("router status --server http://", 2, "expected an address such as http://127.0.0.1:8095"),
    ("router status --server http://host:port", 2, "expected an address such as http://127.0.0.1:8095"),
    (f"router check --config-url {GONE}/config", 4, f"{GONE}/config: it cannot be reached"),
    ("pipeline", 2, "penstock pipeline: the following arguments are required: COMMAND"),
    ("pipeline archiv", 2, "penstock pipeline: unknown command 'archiv'; did you mean archive?"),
    ("pipeline archive --watermark 1m", 2, "penstock pipeline archive: unknown flag --watermark"),
    ("pipeline archive --interval fast", 2, "penstock pipeline archive: argument --interval: 'fast' is not a duration"),
    ("pipeline archive --conf x", 2, "penstock pipeline archive: argument --conf: 'x' is not name=value"),
    (f"pipeline archive --lake= --server {GONE}", 2, "penstock: --lake is '', expected a directory or a URL"),
    ("pipeline archive --data-dir nowhere", 2, "penstock: the data directory is 'nowhere', expected a directory that exists"),
    (f"pipeline archive --server {GONE}", 4, f"penstock: no connection to the server at {GONE}"),
    (f"pipeline run --endpoint {GONE}", 4, f"penstock: no connection to the server at {GONE}"),
    ("pipeline run --master local --remote sc://x", 2, "penstock pipeline run: argument --remote: not allowed with"),
    ("pipeline compact --target-size big", 2, "penstock pipeline compact: argument --target-size: 'big' is not a size"),
    ("pipeline show", 1, "penstock: there are no metrics in the lake"),
    ("pipeline show --minutes 0", 2, "penstock pipeline show: argument --minutes: '0' is not a whole number"),
    ("pipeline init", 2, "penstock pipeline init: the following arguments are required: DIR"),
    ("pipeline init project --data-dir .", 2, "penstock: the project reads from a server, and a data directory is meant"),
    (f"pipeline init 9lives --server {GONE}", 2, "penstock: name is '9lives', expected"),
    ("pipeline replay", 2, "penstock pipeline replay: the following arguments are required: STREAM"),
    ("pipeline replay orders", 2, "penstock: --to is missing, expected the stream to publish to"),
    ("pipeline replay a --to b --speed fast", 2, "penstock: the speed is 'fast', expected full, original, or a factor"),
    ("pipeline replay a --to b --since soon", 2, "penstock pipeline replay: argument --since: 'soon' is neither a time"),
    ("pipeline replay a --to b --from-offset 5 --to-offset 5", 2, "penstock: the range is empty"),
    ("pipeline replay a --to b --since 1h --until 2h", 2, "penstock: the range is empty: since is not before until"),
    ("pipeline replay a --to b --replay-id a/b", 2, "penstock: the replay id is 'a/b', expected"),
    ("pipeline replay a --to b --where ' '", 2, "penstock: the condition is empty"),
    ("pipeline replay a --to b --storage disk", 2, "penstock pipeline replay: unknown storage 'disk'; known: auto, log, lake"),
    (f"pipeline replay a --to a --server {GONE}", 2, "penstock: will not replay a into itself without --yes"),
    ("pipeline replay a --to b --data-dir .", 2, "penstock: a replay writes, and a data directory can only be read"),
    ("trace", 2, "penstock trace: the following arguments are required: MESSAGE-ID"),
    (f"trace 000000000000000000000000000001 --server {GONE}", 4, "penstock: "),
    ("explain", 2, "penstock explain: the following arguments are required: NAME"),
    ("explain billing --limit 0", 2, "penstock explain: argument --limit: '0' is not a whole number from 1 to 1000"),
    ("top", 2, "penstock: top needs a terminal"),
    ("top --once --interval soon", 2, "penstock top: argument --interval: 'soon' is not a duration"),
    ("top --once --interval 1ms", 2, "penstock: --interval is 0.001, expected a duration from 0.1 to 3600 s"),
    ("top --sort size", 2, "penstock top: unknown sort 'size'; known: backlog, rate, age, name"),
    (f"top --once --server {GONE}", 4, "penstock: "),
    ("bench --seconds 0", 2, "penstock: --seconds is 0, expected a duration"),
    ("bench --size 2MiB", 2, "penstock: --size is 2097152, expected a size from 1 to 1048576 bytes"),
    ("bench --batch 0", 2, "penstock bench: argument --batch: '0' is not a whole number from 1 to 1000"),
    (f"bench --server {GONE}", 4, "penstock: "),
    ("demo now", 2, "penstock demo: unknown argument now"),
    ("demo --chapter x", 2, "penstock demo: unknown chapter 'x'; known: shop, router, hub, pipeline"),
    ("doctor now", 2, "penstock doctor: unknown argument now"),
    ("doctor --server x --data-dir y", 2, "penstock doctor: argument --data-dir: not allowed with argument --server"),
    ("doctor --jso", 2, "penstock doctor: unknown flag --jso; did you mean --json?"),
    ("completion", 2, "penstock: no shell is named"),
    ("completion tcsh", 2, "penstock completion: unknown shell 'tcsh'; known: bash, zsh, fish"),
    ("completion --names topic", 2, "penstock completion: unknown names 'topic'; did you mean topics?"),
]
# A server has the topic orders with the subscription billing, and the queue tasks.
WITH_SERVER = [
    ("nodes", 1, " does not serve /nodes"),
    ("topic create a/b", 2, "penstock: topic is 'a/b', expected"),
    ("topic show nosuch", 3, "penstock: Topic not found: nosuch"),
    ("topic delete nosuch", 3, "penstock: Topic not found: nosuch"),
    ("subscription create x --topic nosuch", 3, "penstock: Topic not found: nosuch"),
    ("subscription create x --topic nosuch --ack-deadline 1s", 2, "penstock: ack_deadline_seconds is 1, expected"),
    ("subscription create x --topic nosuch --filter (", 2, "penstock: Invalid filter at position"),
    ("subscription create x --topic t --max-attempts 3", 2, "penstock: --max-attempts is given without --dead-letter-topic"),
    ("subscription show nosuch", 3, "penstock: Subscription not found: nosuch"),
    ("subscription stats nosuch", 3, "penstock: Subscription not found: nosuch"),
    ("subscription pause nosuch", 3, "penstock: Subscription not found: nosuch"),
    ("subscription resume nosuch", 3, "penstock: Subscription not found: nosuch"),
    ("subscription delete nosuch", 3, "penstock: Subscription not found: nosuch"),
    ("subscription seek nosuch --start", 3, "penstock: Subscription not found: nosuch"),
    ("snapshot create x --subscription nosuch", 3, "penstock: Subscription not found: nosuch"),
    ("snapshot delete nosuch", 3, "penstock: Snapshot not found: nosuch"),
    ("publish nosuch x", 3, "penstock: Topic not found: nosuch"),
    ("publish orders --file missing", 2, "penstock: cannot read the file 'missing': No such file or directory"),
    ("publish orders --lines --file missing", 2, "penstock: cannot read the file 'missing': No such file or directory"),
    ("publish orders --lines --file .", 2, "penstock: cannot read the file '.': Is a directory"),
    ("publish orders --file .", 2, "penstock: cannot read the file '.': Is a directory"),
    ("pull nosuch", 3, "penstock: Subscription not found: nosuch"),
    ("pull nosuch --follow", 3, "penstock: Subscription not found: nosuch"),
    ("pull nosuch --peek", 3, "penstock: Subscription not found: nosuch"),
    ("queue publish nosuch x", 3, "penstock: Queue not found: nosuch"),
    ("queue publish tasks { --type json", 2, "penstock: a payload is not JSON: "),
    ("queue consume nosuch", 3, "penstock: Queue not found: nosuch"),
    ("queue consume nosuch --follow", 3, "penstock: Queue not found: nosuch"),
    ("queue create a/b", 2, "penstock: queue is 'a/b', expected"),
    ("queue show nosuch", 3, "penstock: Queue not found: nosuch"),
    ("queue stats nosuch", 3, "penstock: Queue not found: nosuch"),
    ("queue peek nosuch", 3, "penstock: Queue not found: nosuch"),
    ("queue pause nosuch", 3, "penstock: Queue not found: nosuch"),
    ("queue resume nosuch", 3, "penstock: Queue not found: nosuch"),
    ("queue purge nosuch --yes", 3, "penstock: Queue not found: nosuch"),
    ("queue delete nosuch", 3, "penstock: Queue not found: nosuch"),
    ("dlq list nosuch", 3, "penstock: Queue not found: nosuch"),
    ("dlq redrive nosuch", 3, "penstock: Queue not found: nosuch"),
    ("dlq purge nosuch --yes", 3, "penstock: Queue not found: nosuch"),
    ("hub", 2, "COMMAND"),
    ("hub lisen x", 2, "did you mean listen?"),
    ("hub listen", 2, "PATTERN"),
    ("hub listen a//#/b", 2, "expected a topic or a pattern"),
    ("hub listen x --since nonsense", 2, "EPOCH:OFFSET"),
    ("hub listen x --since e:-1", 2, "EPOCH:OFFSET"),
    ("hub listen x y --since e:1", 2, "several patterns"),
    ("hub listen x --durable", 2, "--as"),
    ("hub listen x --durable --as @(a/b) --since e:1", 2, "together"),
    ("hub listen x --as ann", 2, "'@(browser/ui)'"),
    ("hub listen x --count 0", 2, "1 or more"),
    ("hub publish x", 2, "DATA"),
    ("hub publish x# 1", 2, "one topic"),
    ("hub publish x - 1", 2, "together"),
    ("hub publish x 1 --type hub:error", 2, "hub:"),
    ("hub publish x 1 --token a --token-file b", 2, "not allowed"),
    ("hub publish x 1 --token-file nosuch", 2, "can be read"),
    ("hub topics --server ftp://x", 2, "address"),
    (f"hub topics --server {GONE}", 4, "penstock serve"),
    ("hub listen a/#/b", 2, "penstock: topic is 'a/#/b'"),
    ("trace 12", 3, "penstock: Message not found: 12"),
    ("trace 000000000000000000000000000001", 3, "penstock: Message not found: 000000000000000000000000000001"),
    ("explain nobody", 3, "penstock: Subscription not found: nobody"),
    ("explain nobody --queue", 3, "penstock: Queue not found: nobody"),
    ("explain billing 12", 2, "penstock: MESSAGE-ID is '12', expected the id of a message"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a configuration of a router, and modules of workers."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def check(penstock: Penstock, line: str, code: int, said: str) -> None:
    done = penstock(*shlex.split(line))
    for name in FILES:
        sys.modules.pop(Path(name).stem, None)

    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert "Traceback" not in done.err
    assert len(done.err.splitlines()) <= 4


@pytest.mark.parametrize("command", sorted({line.split()[0] for line, _, _ in WITHOUT_SERVER}))
def test_a_wrong_call_leaves_nothing_behind(command: str, folder: Path, subtests: pytest.Subtests) -> None:
    before = sorted(folder.rglob("*"))
    for line, code, said in WITHOUT_SERVER:
        if line.split()[0] == command:
            with subtests.test(line=line):
                check(Penstock(folder), line, code, said)
    assert sorted(folder.rglob("*")) == before


def test_a_wrong_call_of_a_server(penstock: Penstock, subtests: pytest.Subtests) -> None:
    penstock.good("topic create orders")
    penstock.good("subscription create billing --topic orders")
    penstock.good("queue create tasks")
    for line, code, said in WITH_SERVER:
        with subtests.test(line=line):
            check(penstock, line, code, said)


def test_every_command_is_called_wrongly_here() -> None:
    called = {line.split()[0] for line, _, _ in WITHOUT_SERVER + WITH_SERVER}
    assert {command.name for command in COMMANDS} <= called
