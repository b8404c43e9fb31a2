"""The examples in `--help`, by command. A test runs them, in this order, on a server."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "": (
        "penstock serve                    # start a server here",
        "penstock topic create orders      # then, in another terminal",
        "penstock subscription create billing --topic orders",
        "penstock publish orders 'order 1'",
        "penstock pull billing",
        "penstock help publish             # the flags of a command",
    ),
    "serve": ("penstock serve --data-dir data", "penstock serve --memory --port 9000", "penstock serve --config penstock.toml"),
    "config": ("penstock config --port 9000",),
    "token create": ("penstock token create --name billing-service --verbs consume --names 'bill*' --expires 30d",),
    "topic create": ("penstock topic create orders parcels", "penstock topic create audit --retention 7d"),
    "topic show": ("penstock topic show orders",),
    "subscription create": (
        "penstock subscription create billing --topic orders",
        "penstock subscription create shipping --topic orders --ordering --ack-deadline 60s",
        "penstock subscription create triage --topic orders --dead-letter-topic audit --max-attempts 5",
    ),
    "publish": (
        "penstock publish orders 'order 1'",
        "penstock publish orders 'order 2' --attribute country=FR --key customer-7",
        "penstock publish orders --file orders.jsonl --lines",
    ),
    "pull": ("penstock pull billing", "penstock pull billing --peek", "penstock pull shipping --max 100 --wait 5s --format json"),
    "subscription seek": ("penstock subscription seek billing --ago 1h",),
    "snapshot create": ("penstock snapshot create before-release --subscription billing",),
    "explain": ("penstock explain billing",),
    "trace": ("penstock trace MESSAGE-ID",),
    "queue create": ("penstock queue create mail --max-retries 5 --ack-deadline 60s",),
    "queue publish": (
        "penstock queue publish mail 'welcome' --priority 9",
        """penstock queue publish mail '{"to": "ann@example.org"}' --type json --delay 10s""",
    ),
    "queue consume": ("penstock queue consume mail", "penstock queue consume mail --format raw"),
    "dlq list": ("penstock dlq list mail", "penstock dlq list mail --where 'attempts>3 AND error~timeout'"),
    "dlq redrive": ("penstock dlq redrive mail --where 'error~timeout'",),
    "hub listen": ("penstock hub listen 'orders/#'",),
    "hub publish": ("""penstock hub publish orders/eu '{"id": 1}' --type order:created""",),
    "worker": ("penstock worker app:worker", "penstock worker app:worker --queues thumbnails --concurrency 4"),
    "router check": ("penstock router check --config config.json",),
    "router run": ("penstock router run --config config.json",),
    "pipeline run": ("penstock pipeline run --lake lake",),
    "top": ("penstock top --once", "penstock top --sort age"),
    "bench": ("penstock bench --seconds 1 --size 1KiB",),
    "doctor": ("penstock doctor",),
}


def epilog_of(route: str) -> str | None:
    """The examples of a command, for its help."""
    found = EXAMPLES.get(route)
    return None if found is None else "\n  ".join(("examples:", *found))
