// The JavaScript client in Node.js, against real servers. test_js_client.py starts them and runs this file.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { describe, test } from "node:test";

import * as module from "../../../clients/js/hub.js";

const { HubClient, HubError, covers, reconnectDelay } = module;
const { SERVER, GUARDED, LIMITED, KILLED, CONTROL, NODE_MODULES } = process.env;
const { WebSocket } = createRequire(`${NODE_MODULES}/`)("ws");
const TIMES = { timeout: 20_000, backoff: { minimum: 10, maximum: 50 } };

/** Asks the test that runs this file: for a token, for another time, for a killed server. */
const ask = async (what) => (await fetch(`${CONTROL}/${what}`)).text();

/** WebSockets that can be listened to, changed and broken. `said` and `heard` may return false to lose a frame, or another text. */
function tapped({ said = () => {}, heard = () => {} } = {}) {
  const sockets = [];
  return class Tapped extends WebSocket {
    static sockets = sockets;
    constructor(url) { super(url); sockets.push(this); }
    send(text) { if (said(JSON.parse(text), this) !== false) super.send(text); }
    set onmessage(handler) {
      super.onmessage = handler && ((event) => {
        const found = heard(JSON.parse(event.data), this);
        if (found !== false) handler({ data: found ?? event.data });
      });
    }
    static break() { sockets.at(-1).terminate(); }
  };
}

/** A connected client that is closed at the end of the test. */
async function client(t, { server = SERVER, ...options } = {}) {
  const hub = new HubClient(server, { WebSocket, ...TIMES, ...options });
  t.after(() => hub.close());
  await hub.connect();
  return hub;
}

/** The next messages of a subscription. */
async function take(subscription, count) {
  const found = [];
  for await (const message of subscription) {
    found.push(message);
    if (found.length === count) return found;
  }
  return found;
}

/** A promise, and what settles it. */
function signal() {
  let resolve;
  const promise = new Promise((done) => { resolve = done; });
  return { promise, resolve };
}

const data = (messages) => messages.map((message) => message.data);
const fails = (promise, code, pattern = /./) => assert.rejects(promise, (error) => error instanceof HubError && error.code === code && pattern.test(error.message) || assert.fail(`${error.code}: ${error.message}`));

describe("the JavaScript client", { concurrency: true, timeout: 60_000 }, () => {
  test("receives what is published to topics that a pattern covers, in order", async (t) => {
    const [ann, bob] = await Promise.all([client(t, { address: "@(js/ann)" }), client(t, { address: "@(js/bob)" })]);
    const handled = [], done = signal();
    const orders = ann.subscribe("orders/+/new"), all = ann.subscribe("orders/#", { onMessage(message) { handled.push(message.topic); if (handled.length === 4) done.resolve(); } });
    await Promise.all([orders.ready, all.ready]);

    for (const topic of ["orders", "orders/eu", "orders/eu/new"]) await bob.publish(topic, topic);
    const published = await bob.publish("orders/us/new", { id: 1 }, { type: "order:placed" });
    const [first, second] = await take(orders, 2);
    await done.promise;

    assert.equal(first.data, "orders/eu/new");
    assert.deepEqual({ ...second, sentAt: second.sentAt instanceof Date }, { type: "order:placed", sender: "@(js/bob)", topic: "orders/us/new", data: { id: 1 }, position: published.position, id: published.messageId, sentAt: true, ackId: null });
    assert.deepEqual(handled, ["orders", "orders/eu", "orders/eu/new", "orders/us/new"]);
    assert.equal(published.subscriberCount, 1);
    assert.deepEqual([ann.state, orders.position, orders.waiting], ["connected", published.position, 0]);
    assert.throws(() => ann.subscribe("orders/#"), /subscribes to orders\/# already/);
    assert.throws(() => all[Symbol.asyncIterator](), /has onMessage/);
  });

  test("handles one message after another, and continues after a handler that throws", async (t) => {
    const hub = await client(t), order = [], done = signal(), uncaught = signal();
    globalThis.reportError = uncaught.resolve; // as browsers have it
    await hub.subscribe("slow", {
      async onMessage({ data }) {
        order.push(`start ${data}`);
        await new Promise(setImmediate);
        order.push(`end ${data}`);
        if (data === 1) throw new Error("a fault of the handler");
        if (data === 2) done.resolve();
      },
    }).ready;
    await Promise.all([1, 2].map((number) => hub.publish("slow", number)));
    await done.promise;
    assert.deepEqual(order, ["start 1", "end 1", "start 2", "end 2"]);
    assert.equal((await uncaught.promise).message, "a fault of the handler");
  });

  test("ends a subscription, and may start it again", async (t) => {
    const hub = await client(t), first = hub.subscribe("ended");
    await first.ready;
    await first.unsubscribe();
    assert.equal((await hub.publish("ended", 1)).subscriberCount, 0);
    assert.deepEqual(await take(first, 1), []);
    const second = hub.subscribe("ended");
    await second.ready;
    await hub.publish("ended", 2);
    assert.deepEqual(data(await take(second, 1)), [2]);
    await fails(hub.subscribe("a//#/b").ready, "internal_error", /topic/);
  });

  test("knows who is present", async (t) => {
    const ann = await client(t, { address: "@(js/present-ann)" }), events = [], left = signal();
    const room = ann.subscribe("room", { onPresence({ event, actors }) { events.push(`${event} ${actors}`); if (event === "leave") left.resolve(); } });
    await room.ready;
    const bob = await client(t, { address: "@(js/present-bob)" });
    await bob.subscribe("room").ready;
    assert.deepEqual(await ann.presence("room"), ["@(js/present-ann)", "@(js/present-bob)"]);
    await bob.close();
    await left.promise;
    assert.deepEqual(events, ["list @(js/present-ann)", "join @(js/present-bob)", "leave @(js/present-bob)"]);
    assert.deepEqual([...room.present], ["@(js/present-ann)"]);
  });

  test("recovers exactly what it missed on topics with a log, and reports a gap on others", async (t) => {
    const Socket = tapped(), gaps = [], gap = signal(), writer = await client(t);
    let gate = null;
    const reader = await client(t, { WebSocket: Socket, token: () => gate?.promise });
    const chat = reader.subscribe("chat/recovered", { onGap: () => gaps.push("chat") });
    const news = reader.subscribe("plain/#", { onMessage() {}, onGap: ({ topic }) => { gaps.push(topic); gap.resolve(); } });
    await Promise.all([chat.ready, news.ready]);
    await writer.publish("chat/recovered", "before");
    assert.deepEqual(data(await take(chat, 1)), ["before"]);

    gate = signal(); // no connection until it opens
    Socket.break();
    for (const text of ["one", "two", "three"]) await writer.publish("chat/recovered", text);
    await writer.publish("plain/news", "lost");
    gate.resolve();
    await gap.promise;
    await writer.publish("chat/recovered", "after");

    assert.deepEqual(data(await take(chat, 4)), ["one", "two", "three", "after"]);
    assert.deepEqual(gaps, ["plain/#"]);
    assert.equal(Socket.sockets.length, 2);

    const { position } = chat;
    await writer.publish("chat/recovered", "for another client");
    const another = await client(t), one = another.subscribe("chat/recovered", { since: position });
    assert.deepEqual(data(await take(one, 1)), ["for another client"]);
    const all = another.subscribe("chat/#", { since: position }); // the hub sends it again, for this one alone
    assert.deepEqual(data(await take(all, 1)), ["for another client"]);
    await writer.publish("chat/recovered", "last");
    assert.deepEqual(data([...await take(one, 1), ...await take(all, 1)]), ["last", "last"]);
  });

  test("sends a publish again whose answer was lost, and it is forwarded once", async (t) => {
    let lost = 0;
    const Socket = tapped({ heard(envelope, socket) { if (envelope.type === "hub:delivery_ack" && !lost++) { socket.terminate(); return false; } } });
    const reader = await client(t), writer = await client(t, { WebSocket: Socket, address: "@(js/repeats)" }), messages = reader.subscribe("repeated");
    await messages.ready;
    await writer.publish("repeated", "once");
    await writer.publish("repeated", "last");
    assert.deepEqual(data(await take(messages, 2)), ["once", "last"]);
    assert.equal(Socket.sockets.length, 2);
  });

  test("reports that nobody knows what became of a direct message whose answer was lost", async (t) => {
    const Socket = tapped({ heard(envelope, socket) { if (envelope.type === "hub:delivery_ack") { socket.terminate(); return false; } } });
    const hub = await client(t, { WebSocket: Socket });
    await fails(hub.send(hub.address, 1), "connection_lost", /may or may not have been executed/);
  });

  test("subscribes to a topic that is added while it connects", async (t) => {
    const Socket = tapped({ said({ type, payload }) { if (type === "hub:subscribe" && payload.topic === "early") late = hub.subscribe("late"); } });
    const hub = new HubClient(SERVER, { WebSocket: Socket, ...TIMES });
    let late = null;
    t.after(() => hub.close());
    hub.subscribe("early");
    await hub.connect();
    assert.equal(late.isSubscribed, true);
    await hub.publish("late", "heard");
    assert.deepEqual(data(await take(late, 1)), ["heard"]);
  });

  test("keeps messages of a durable subscription until they are acknowledged", async (t) => {
    const address = "@(js/billing)", writer = await client(t), options = { durable: true };
    const first = await client(t, { address });
    await first.subscribe("bills/#", options).ready;
    await first.close();
    for (const number of [1, 2]) await writer.publish("bills/eu", number);

    const second = await client(t, { address }), [one, two] = await take(second.subscribe("bills/#", options), 2);
    assert.deepEqual(data([one, two]), [1, 2]);
    assert.notEqual(one.ackId, two.ackId);
    await one.ack();
    await second.close();

    const third = await client(t, { address }), [again] = await take(third.subscribe("bills/#", options), 1);
    assert.equal(again.data, 2);
    await third.ack(again);
    await writer.publish("bills/eu", 3);
    await third.close();

    const fourth = await client(t, { address });
    await fails(fourth.subscribe("bills/#").ready, "failed_precondition", /durable: true/);
    assert.deepEqual(data(await take(fourth.subscribe("bills/#", options), 1)), [3]);
    await fourth.unsubscribe("bills/#");
    assert.equal((await writer.publish("bills/eu", 4)).subscriberCount, 0);
    assert.throws(() => fourth.subscribe("x", { durable: true, since: { epoch: "", offset: 1 } }), /leave out since/);
  });

  test("acknowledges on the next connection what was handled while there was none", async (t) => {
    const acked = signal();
    const Socket = tapped({ said({ type, payload }, socket) { if (type === "hub:ack" && Socket.sockets.indexOf(socket) === 1) acked.resolve(payload.ackIds.length); } });
    const hub = await client(t, { WebSocket: Socket, address: "@(js/away)" }), messages = hub.subscribe("work", { durable: true });
    await messages.ready;
    await hub.publish("work", 1);
    const [message] = await take(messages, 1);
    Socket.break();
    const done = message.ack();
    assert.equal(await acked.promise, 1);
    await done;
    await hub.publish("work", 2);
    assert.deepEqual(data(await take(messages, 1)), [2]); // and not the first one again
    await messages.unsubscribe();

    const plain = hub.subscribe("plain-ack");
    await plain.ready;
    await hub.publish("plain-ack", 1);
    await fails((await take(plain, 1))[0].ack(), "invalid_argument", /durable: true/);
  });

  test("asks the hub to hold back while a reader is behind", async (t) => {
    const flow = [], paused = signal();
    const Socket = tapped({ said({ type }) { if (/pause|resume/.test(type)) flow.push(type); }, heard({ type }) { if (type === "hub:flow") paused.resolve(); } });
    const hub = await client(t, { WebSocket: Socket }), writer = await client(t), messages = hub.subscribe("many", { maxWaiting: 5 });
    await messages.ready;
    for (let number = 0; number < 20; number += 1) {
      await writer.publish("many", number);
      if (number === 9) await paused.promise;
    }
    assert.ok(messages.waiting >= 5 && messages.waiting < 20);
    assert.deepEqual(data(await take(messages, 20)), Array.from({ length: 20 }, (_, number) => number));
    assert.deepEqual(flow.slice(0, 2), ["hub:pause", "hub:resume"]);
  });

  test("slows down where the hub takes fewer requests, and loses none", async (t) => {
    let unanswered = 0, most = 0, refused = 0;
    const Socket = tapped({
      said() { unanswered += 1; most = Math.max(most, unanswered); },
      heard({ type }) { unanswered -= 1; if (type === "hub:error") refused += 1; },
    });
    const hub = await client(t, { server: LIMITED, WebSocket: Socket });
    const answers = await Promise.all(Array.from({ length: 300 }, (_, number) => hub.publish("fast", number)));
    assert.equal(answers.length, 300);
    assert.ok(refused > 0);
    assert.ok(most <= 256, `${most} requests at once: the hub closes the connection of a client that has too many refused`);
    assert.equal(Socket.sockets.length, 1);
  });

  test("finds topics and actors, and sends to them", async (t) => {
    const received = [], both = signal();
    const onDirect = (message) => { received.push(message); if (received.length === 2) both.resolve(); };
    const hub = await client(t), agent = await client(t, { address: "@(js/agent)", capabilities: ["found"], metadata: { team: "a" }, onDirect });
    await agent.subscribe("chat/listed").ready;
    await agent.subscribe("listed/+").ready;

    assert.deepEqual(await hub.topics("listed"), { topics: [{ topic: "listed/+", subscriberCount: 1 }], total: 1, hasMore: false });
    const { history, subscriberCount, exactCount } = await hub.topicInfo("chat/listed");
    assert.deepEqual({ history, subscriberCount, exactCount }, { history: true, subscriberCount: 1, exactCount: 1 });
    const { actors, totalMatches } = await hub.discover({ capabilities: ["found"], metadata: { team: "a" } });
    assert.deepEqual([actors[0].actorAddress, totalMatches], ["@(js/agent)", 1]);
    await hub.send("@(js/agent)", { order: 1 }, { type: "invoice" });
    assert.equal(await hub.broadcast("all", { capability: "found" }), 1);
    await both.promise;
    assert.deepEqual(received.map(({ type, data, topic, sender }) => [type, data, topic, sender]), [["invoice", { order: 1 }, null, hub.address], ["message", "all", null, hub.address]]);
    await fails(hub.send("@(js/nobody)"), "unknown_actor");
  });

  test("renews its registration", async (t) => {
    const twice = signal();
    let renewals = 0;
    const hub = await client(t, { ttl: 1_000, WebSocket: tapped({ heard({ type }) { if (type === "hub:renewed" && ++renewals === 2) twice.resolve(); } }) });
    await twice.promise;
    assert.equal(hub.state, "connected");
  });

  test("notices a connection that died silently", async (t) => {
    const states = [], back = signal();
    const Socket = tapped({
      heard(envelope, socket) {
        if (envelope.type === "hub:heartbeat_ack") return Socket.sockets.indexOf(socket) > 0;
        if (envelope.type === "hub:connected") return JSON.stringify({ ...envelope, payload: { ...envelope.payload, heartbeatInterval: 50 } });
      },
    });
    const onState = ({ state, problem }) => { states.push(state); if (state === "waiting") assert.match(problem, /did not answer hub:heartbeat/); if (states.length === 5) back.resolve(); };
    await client(t, { WebSocket: Socket, timeout: 3_000, onState });
    await back.promise;
    assert.deepEqual(states, ["connecting", "connected", "waiting", "connecting", "connected"]);
  });

  test("survives a killed server: it recovers what was missed, and sends what was published meanwhile", async (t) => {
    const states = [], waiting = signal();
    const onState = ({ state }) => { states.push(state); if (state === "waiting") waiting.resolve(); };
    const hub = await client(t, { server: KILLED, onState }), chat = hub.subscribe("chat/lobby", { onGap: () => assert.fail("a gap") });
    await chat.ready;
    await hub.publish("chat/lobby", "before");
    await ask("kill");
    await waiting.promise;
    const published = hub.publish("chat/lobby", "while the server was down");
    await ask("start");
    await published;
    const other = await client(t, { server: KILLED });
    await other.publish("chat/lobby", "after");
    assert.deepEqual(data(await take(chat, 3)), ["before", "while the server was down", "after"]);
    assert.equal(states.at(-1), "connected");
  });

  test("tries now when it is asked to, instead of waiting", async (t) => {
    const Socket = tapped(), waits = [], back = signal();
    let isDown = false;
    class Failing extends Socket { constructor(url) { super(isDown ? "ws://127.0.0.1:1/ws" : url); } }
    const onState = ({ state, retryIn }) => {
      if (state === "waiting") waits.push(retryIn);
      if (waits.length === 2 && state === "waiting") { isDown = false; hub.reconnect(); }
      if (waits.length === 2 && state === "connected") back.resolve();
    };
    const hub = await client(t, { WebSocket: Failing, onState, backoff: { minimum: 3_600_000, maximum: 3_600_000 } });
    isDown = true;
    Socket.break();
    await back.promise;
    assert.equal(waits[0], 0);
    assert.ok(waits[1] >= 1_800_000);
  });

  test("checks tokens, refreshes them, and continues with another when one has expired", async (t) => {
    const Socket = tapped();
    const bad = new HubClient(GUARDED, { WebSocket: Socket, ...TIMES, token: "nonsense" });
    const refused = bad.subscribe("a");
    await fails(bad.connect(), "unauthorized", /token/);
    assert.deepEqual([bad.state, bad.error.reason, bad.error.retryable, Socket.sockets.length], ["failed", "malformed_token", false, 1]);
    await fails(refused.ready, "unauthorized");
    await fails(bad.publish("a"), "unauthorized");
    await fails(bad.connect(), "unauthorized");
    await fails(new HubClient(GUARDED, { WebSocket }).connect(), "unauthorized", /token/);

    const hub = await client(t, { server: GUARDED, token: await ask("token?subscribe=a,b") });
    assert.equal(hub.address, "@(browser/ann)");
    const [lost, kept] = [hub.subscribe("a"), hub.subscribe("b")];
    await Promise.all([lost.ready, kept.ready]);
    await fails(hub.subscribe("c").ready, "unauthorized", /c/);
    const { expiresAt } = await hub.refreshToken(await ask("token?subscribe=b"));
    assert.ok(expiresAt > 0);
    await fails(take(lost, 1), "unauthorized");
    await ask("advance?seconds=105");
    await fails(hub.publish("b"), "unauthorized", /expired/);
    await hub.refreshToken(await ask("token"));
    await hub.publish("b", "kept");
    assert.deepEqual(data(await take(kept, 1)), ["kept"]);
    await fails(hub.refreshToken("nonsense"), "invalid_token");
    await hub.close();

    const Refreshed = tapped(), direct = signal();
    let asked = 0;
    const lasting = await client(t, { server: GUARDED, WebSocket: Refreshed, onDirect: direct.resolve, token: () => { asked += 1; return ask("token"); } });
    await ask("advance?seconds=105");
    await Promise.all([lasting.send(lasting.address, "to myself"), lasting.publish("a"), lasting.topics()]);
    assert.equal((await direct.promise).data, "to myself");
    assert.deepEqual([asked, Refreshed.sockets.length], [2, 1]);
  });

  test("fails clearly", async (t) => {
    const Global = globalThis.WebSocket;
    globalThis.WebSocket = undefined;
    assert.throws(() => new HubClient(SERVER), /no global WebSocket: use Node.js 22, or pass WebSocket/);
    globalThis.WebSocket = Global;
    for (const [server, options, problem] of [
      ["nowhere", {}, /server is "nowhere", expected the address of a server/],
      [undefined, {}, /server is undefined/],
      ["http://user:secret@host", {}, /^(?!.*secret).*\(the host is host\).*a token is an option/],
      ["http://host/path", {}, /server has the path \/path/],
      [SERVER, { address: "ann" }, /address is "ann", expected @\(kind\/name\)/],
      [SERVER, { capabilities: [] }, /capabilities is \[\], expected a list/],
      [SERVER, { ttl: 5 }, /ttl is 5, expected milliseconds from 1000/],
      [SERVER, { timeout: 0 }, /timeout is 0, expected milliseconds/],
    ]) assert.throws(() => new HubClient(server, { WebSocket, ...options }), (error) => error.code === "invalid_argument" && problem.test(error.message), String(problem));

    const nobody = new HubClient("http://127.0.0.1:1", { WebSocket, ...TIMES });
    await fails(nobody.connect(), "unreachable", /^no connection to ws:\/\/127.0.0.1:1\/ws: the server cannot be reached: see whether/);
    await fails(new HubClient(CONTROL, { WebSocket, ...TIMES }).connect(), "unreachable");
    await fails(new HubClient(SERVER, { WebSocket, ...TIMES, token() { throw new Error("no token today"); } }).connect(), "unreachable", /function that returns the token failed/);
    await fails(new HubClient(SERVER, { WebSocket, timeout: 50 }).publish("a"), "unreachable", /connect\(\) was not called/);

    const hub = await client(t, { address: "@(js/taken)" });
    await fails(hub.publish("a", 1n), "invalid_argument", /BigInt/);
    await fails(hub.publish("a", "x".repeat(2 ** 20)), "message_too_large", /expected at most 1048576/);
    await fails(hub.publish("a/+"), "internal_error", /./);
    await fails(hub.connect(), "failed_precondition", /make another HubClient/);
    const messages = hub.subscribe("a");
    await messages.ready;
    await client(t, { address: "@(js/taken)" });
    await fails(take(messages, 1), "duplicate_connection", /choose another one/);
    assert.equal(hub.state, "failed");
  });

  test("ends when it is closed", async (t) => {
    const hub = await client(t), messages = hub.subscribe("closing"), states = [];
    await messages.ready;
    await hub.publish("closing", "last");
    await Promise.all([hub.close(), hub.close()]);
    assert.deepEqual(data(await take(messages, 2)), ["last"]);
    assert.equal(hub.state, "closed");
    await fails(hub.publish("closing"), "closed", /make another HubClient/);
    assert.throws(() => hub.subscribe("b"), /closed/);
    const early = new HubClient(SERVER, { WebSocket, onState: ({ state }) => states.push(state) }), connecting = early.connect();
    await early.close();
    await fails(connecting, "closed");
    assert.deepEqual(states, ["connecting", "closed"]);
  });

  test("waits longer and longer, at random, before it reconnects", () => {
    const waits = (chance) => [1, 2, 3, 4, 5, 6, 7, 8, 100].map((attempt) => reconnectDelay(attempt, chance));
    assert.deepEqual(waits(0), [0, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000]);
    assert.deepEqual(waits(1), waits(0).map((wait) => wait / 2));
  });

  test("knows which topics a pattern covers", () => {
    for (const [pattern, topic, expected] of [
      ["orders/eu", "orders/eu", true], ["orders/eu", "orders/eu/new", false], ["orders/+", "orders/eu", true], ["orders/+", "orders", false],
      ["orders/+/new", "orders/eu/new", true], ["orders/+/new", "orders/new", false], ["orders/#", "orders", true], ["orders/#", "orders/eu/new", true],
      ["orders/#", "order", false], ["#", "a/b", true], ["+/b", "a/b", true],
    ]) assert.equal(covers(pattern, topic), expected, `${pattern} ${topic}`);
  });

  test("is what its types describe", async (t) => {
    const types = readFileSync(new URL("../../../clients/js/hub.d.ts", import.meta.url), "utf8");
    const exported = [...types.matchAll(/^export (?:class|function) (\w+)/gm)].map(([, name]) => name);
    assert.deepEqual(exported.sort(), Object.keys(module).sort());
    const members = (name) => [...types.split(`export class ${name}`)[1].split("\n}")[0].matchAll(/^  (?:readonly )?(\w+)[<(:]/gm)].map(([, member]) => member).filter((member) => member !== "constructor").sort();
    const found = (object) => [...new Set([...Object.keys(object), ...Object.getOwnPropertyNames(Object.getPrototypeOf(object))])].filter((name) => name !== "constructor").sort();
    const hub = await client(t), subscription = hub.subscribe("typed");
    await subscription.ready;
    await hub.publish("typed");
    const [message] = await take(subscription, 1);
    for (const [name, object] of Object.entries({ HubClient: hub, HubSubscription: subscription, HubMessage: message, HubError: new HubError("code", "problem") })) {
      assert.deepEqual(found(object), members(name), name);
    }
  });
});
