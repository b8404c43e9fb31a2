"""A topic and a work queue of a Penstock server over plain HTTP, with nothing but the standard library.

    penstock serve
    python examples/rest.py [URL]

With a server that asks for tokens, set TOKEN.
"""

import base64
import json
import os
import sys
import urllib.request
from typing import Any

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8085"
HEADERS = {"Content-Type": "application/json"}
if "TOKEN" in os.environ:
    HEADERS["Authorization"] = f"Bearer {os.environ['TOKEN']}"


def call(method: str, path: str, body: object = None) -> Any:
    """The JSON of the answer; urllib.error.HTTPError when the server refuses."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(URL + path, data, HEADERS, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def command(name: str, **payload: object) -> Any:
    """Execute one command of the queue API."""
    return call("POST", "/api/v1/command", {"command": name, "payload": payload})["payload"]


def main() -> None:
    """Publish and pull, then put and take."""
    home = "/v1/projects/shop"
    topics = call("GET", f"{home}/topics").get("topics", [])
    if not any(topic["name"].endswith("/topics/news") for topic in topics):
        call("PUT", f"{home}/topics/news", {})
        call("PUT", f"{home}/subscriptions/desk", {"topic": "projects/shop/topics/news"})
    call("POST", f"{home}/topics/news:publish", {"messages": [{"data": base64.b64encode(b"hello").decode()}]})
    pulled = call("POST", f"{home}/subscriptions/desk:pull", {"maxMessages": 10})["receivedMessages"]
    for received in pulled:
        print("pulled:", base64.b64decode(received["message"]["data"]).decode())
    call("POST", f"{home}/subscriptions/desk:acknowledge", {"ackIds": [received["ackId"] for received in pulled]})

    command("queue.create", queue="mail", max_retries=1)
    command("queue.publish", queue="mail", message={"to": "ann@example.org"}, priority=9)
    taken = command("queue.consume", queue="mail", timeout=5)
    print("taken:", taken["message"], "priority", taken["priority"])
    command("queue.ack", queue="mail", message_id=taken["message_id"])
    print("left:", command("queue.stats", queue="mail")["depth"])


if __name__ == "__main__":
    main()
