// The client of Penstock's hub: publish and subscribe in real time, over a WebSocket that reconnects by itself.
//
//   new ── connect() ──> connecting ── hub:connect, hub:register, subscriptions again ──> connected ── lost ──> waiting ──> connecting …
//                                                                                             └── close(), or refused ──> closed, failed
//
// The rules are those of penstock.client.HubClient: reconnect with backoff, resume by position, and report every gap. A request
// waits for a connection until its timeout. If the connection breaks before the answer, it is sent again with the same id where
// that changes nothing twice; otherwise the caller gets an error, because nobody knows whether it was done.

const HUB = "@(cloudflare/signal-hub)";
const HEARTBEAT = 25_000; // at the latest: a connection that died silently is noticed soon after
const RENEW_AT = 0.75; // of the TTL
const GOODBYE = 2_000; // how long close() waits for the hub's answer
const STEADY = 3_000; // a connection that lasted this long was no failed attempt
const FORGOTTEN = 1_000; // after this long without a request, a rate limit of the hub is over
const MAX_UNANSWERED = 256; // further requests wait here, so that a rate limit refuses few of them
const MAX_ACKS = 1_000; // of one request
const MAX_REMEMBERED = 10_000; // messages that were acknowledged, or can be: far more than a hub has out
const MAX_EPOCHS = 10_000; // of one subscription. One that was forgotten can only bring a message twice

// Close codes after which the same would happen again, with what to do.
const FINAL = new Map([
  [1002, ["protocol_error", "the hub closed the connection: it received a frame that RFC 6455 forbids", "check proxies between client and hub"]],
  [1007, ["invalid_utf8", "the hub closed the connection: it received text that is not UTF-8", "check proxies between client and hub"]],
  [1009, ["message_too_large", "the hub closed the connection: a message was too large", "send less at once, or raise the server's hub_max_message_bytes"]],
  [4001, ["unauthorized", "the hub closed the connection: the token expired, or was not accepted", "connect again with a new token"]],
  [4002, ["duplicate_connection", "another connection took this address", "choose another one, or connect again to take it back"]],
  [4005, ["version_mismatch", "the hub speaks another version", "use the client of the server's version"]],
]);

/** Why a call failed, or why there is no connection. `code` and `reason` are for programs, `message` contains the `hint`. */
export class HubError extends Error {
  constructor(code, problem, { reason = code, hint = "", retryable = false, details = {}, cause } = {}) {
    super(hint ? `${problem}: ${hint}` : problem, cause === undefined ? undefined : { cause });
    Object.assign(this, { name: "HubError", code, reason, hint, retryable, details });
  }
}

/** Whether a pattern with `+` (one level) and a last `#` (any number of levels) covers a topic. */
export function covers(pattern, topic) {
  const expected = pattern.split("/"), given = topic.split("/");
  if (expected.at(-1) === "#") { expected.pop(); given.length = Math.min(given.length, expected.length); }
  return expected.length === given.length && expected.every((level, index) => level === "+" || level === given[index]);
}

/** Milliseconds before attempt number `attempt` to reconnect: 0 for the first, then doubled, shortened by up to half. `chance` is from 0 to 1. */
export function reconnectDelay(attempt, chance, { minimum = 1_000, maximum = 30_000 } = {}) {
  const longest = attempt < 2 ? 0 : Math.min(maximum, minimum * 2 ** (attempt - 2));
  return longest - chance * longest / 2;
}

/** A message of a topic, or one that another actor sent to this one. */
export class HubMessage {
  #ack;

  constructor(envelope, ack) {
    const { topic = null, epoch, offset, messageId, originalMessageId, ackId = null } = envelope.metadata ?? {};
    this.type = envelope.type;
    this.sender = envelope.from ?? "";
    this.topic = topic;
    this.data = envelope.payload ?? null;
    this.position = epoch === undefined || offset === undefined ? null : { epoch, offset };
    this.id = messageId ?? originalMessageId ?? "";
    this.sentAt = envelope.timestamp === undefined ? null : new Date(envelope.timestamp);
    this.ackId = ackId;
    this.#ack = ack;
  }

  /** Tell the hub that this message of a durable subscription is done, so that it is not delivered again. */
  ack() { return this.#ack(this); }
}

// Its id alone does not identify a message: publishers choose it, and may choose the same one again.
const keyOf = ({ id, position }) => `${position?.epoch} ${position?.offset} ${id}`;

/** The messages of one topic or pattern: iterate with `for await`, or pass `onMessage`. */
export class HubSubscription {
  #inbox;

  constructor(inbox) { this.#inbox = inbox; }

  get topic() { return this.#inbox.topic; }
  get durable() { return this.#inbox.durable; }
  get isSubscribed() { return this.#inbox.isSubscribed; }
  get waiting() { return this.#inbox.waiting; }
  get present() { return this.#inbox.present; }
  get position() { return this.#inbox.position; }
  get error() { return this.#inbox.error; }
  get ready() { return this.#inbox.confirmed.promise; }

  unsubscribe() { return this.#inbox.unsubscribe(); }

  [Symbol.asyncIterator]() {
    if (this.#inbox.hasHandler) throw invalid("the subscription has onMessage", "iterate over one without onMessage");
    const inbox = this.#inbox;
    // `break` ends a loop, not the subscription.
    return { next: () => inbox.next(), return: async () => ({ done: true, value: undefined }), [Symbol.asyncIterator]() { return this; } };
  }
}

// What one subscription has received, over all its connections, and how far it has come.
//
// A position is an offset in a history that an epoch names; within an epoch offsets only grow. A subscription is resumed in one
// epoch only: if it has seen several, messages of the others may be missing, which is a gap.
class Inbox {
  #options;
  #taken; // told after each message that was taken
  #queue = []; // messages, and gaps in between
  #wake = null; // those who wait for the next
  #held = new Map(); // durable: key -> whether it still waits here. The hub does not send these again on this connection
  #seen = new Map(); // epoch -> the last offset
  #history = null; // the epoch of the topic or pattern as a whole, if the hub named one
  #asked = null; // the position of the last hub:subscribe
  #hasStarted = false;
  #place; // of the last message that was taken
  #isOpen = true;

  constructor(topic, options, { taken, unsubscribe }) {
    const { durable = false, presence = false, since = null, onMessage, onPresence, maxWaiting = 1_000 } = options;
    if (durable && since) throw invalid("durable and since are given together", "a durable subscription knows its position; leave out since");
    if (!(maxWaiting >= 1)) throw invalid(`maxWaiting is ${maxWaiting}, expected 1 or more`);
    Object.assign(this, { topic, durable, maxWaiting, unsubscribe, hasHandler: Boolean(onMessage), wantsPresence: presence || Boolean(onPresence) });
    this.isAsked = false; // hub:subscribe was sent on this connection
    this.isSubscribed = false; // and confirmed: what came before was not for this one
    this.present = new Set();
    this.error = null;
    this.waiting = 0;
    this.confirmed = deferred();
    this.#options = options;
    this.#taken = taken;
    this.#place = since;
    if (since) this.#seen.set(since.epoch, since.offset);
    if (this.hasHandler) this.#handle();
  }

  get position() { return this.waiting ? this.#place : this.#last(); }

  // ── taking ──

  async next() {
    for (;;) {
      if (this.#queue.length) {
        const item = this.#queue.shift();
        if (!(item instanceof HubMessage)) { this.#tell("onGap", item); continue; }
        this.waiting -= 1;
        this.#place = item.position ?? this.#place;
        if (this.durable && this.#held.has(keyOf(item))) this.#held.set(keyOf(item), false);
        this.#taken();
        return { done: false, value: item };
      }
      if (this.error) throw this.error;
      if (!this.#isOpen) return { done: true, value: undefined };
      this.#wake ??= deferred();
      await this.#wake.promise;
    }
  }

  async #handle() {
    try {
      for (let taken = await this.next(); !taken.done; taken = await this.next()) {
        try { await this.#options.onMessage(taken.value); } catch (error) { throwLater(error); }
      }
    } catch (error) {
      this.#tell("onError", error);
    }
  }

  #tell(name, value) {
    try {
      if (this.#options[name]) this.#options[name](value);
      else if (name === "onGap") console.warn(`penstock: messages of ${this.topic} may be missing; pass onGap to handle it`);
    } catch (error) { throwLater(error); }
  }

  #put(item) {
    this.#queue.push(item);
    this.#awake();
  }

  #awake() {
    this.#wake?.resolve();
    this.#wake = null;
  }

  // ── from the hub ──

  ask() {
    this.isAsked = true;
    this.#asked = this.durable ? null : this.#last();
    return { topic: this.topic, durable: this.durable, presence: this.wantsPresence, since: this.#asked };
  }

  subscribed({ durable, recovered, position }) {
    if (durable && !this.durable) { // nobody would acknowledge, and the hub would stop sending
      const hint = "subscribe with durable: true and acknowledge its messages, or end it with hub.unsubscribe first";
      this.fail(new HubError("failed_precondition", `${this.topic} is a durable subscription of this address`, { hint }));
      return;
    }
    const since = this.#asked, isReturn = this.#hasStarted || since !== null, hasOthers = this.#seen.size > 1;
    this.isSubscribed = this.#hasStarted = true;
    this.#history = position?.epoch ?? null;
    // If recovered, not the hub's position: until all that was missed has come, the next connection must start after the last.
    const from = recovered && since ? since : position;
    this.#seen = new Map(from ? [[from.epoch, from.offset]] : []);
    this.#place ??= from ?? null;
    if (!this.durable && isReturn && (hasOthers || !recovered)) this.#put({ topic: this.topic, since });
    this.confirmed.resolve();
  }

  offer(message) {
    if (!this.isSubscribed || this.durable !== (message.ackId !== null) || !covers(this.topic, message.topic)) return false;
    if (this.durable) {
      const key = keyOf(message);
      if (this.#held.has(key)) return true; // another durable subscription brought a copy, or it waits here since an earlier connection
      this.#held.set(key, true);
    } else if (message.position) {
      const { epoch, offset } = message.position, seen = this.#seen;
      if (offset <= (seen.get(epoch) ?? -2)) return true;
      if (!seen.has(epoch) && !/[+#]/.test(this.topic)) seen.clear(); // one topic has one history: this one replaced the last
      seen.delete(epoch);
      seen.set(epoch, offset);
      if (seen.size > MAX_EPOCHS) seen.delete(seen.keys().next().value);
    }
    this.waiting += 1;
    this.#put(message);
    return true;
  }

  settled(key) { this.#held.delete(key); }

  presence({ topic, event, actors }) {
    if (event === "list") this.present = new Set();
    for (const actor of actors) event === "leave" ? this.present.delete(actor) : this.present.add(actor);
    this.#tell("onPresence", { topic, event, actors });
  }

  broke() {
    this.isAsked = this.isSubscribed = false;
    for (const [key, isWaiting] of this.#held) if (!isWaiting) this.#held.delete(key); // these are delivered again
  }

  fail(error) {
    this.isSubscribed = false;
    this.error ??= error;
    this.confirmed.reject(error);
    this.#awake();
  }

  close(error, { drop }) {
    this.isSubscribed = this.#isOpen = false;
    if (drop) { this.#queue = []; this.waiting = 0; }
    this.confirmed.reject(error);
    this.#awake();
  }

  #last() {
    const epoch = this.#seen.has(this.#history) ? this.#history : [...this.#seen.keys()].at(-1);
    return epoch === undefined ? null : { epoch, offset: this.#seen.get(epoch) };
  }
}

/** An actor at a hub. A client is used once: after `close()` or a final error, make another one. */
export class HubClient {
  #options;
  #token;
  #timeout;
  #ttl;
  #WebSocket;
  #parse;
  #isMadeUp;
  #state = "new";
  #error = null; // why there is no connection any more
  #problem = "connect() was not called";
  #opened = deferred();
  #connection = null; // { socket, isReady, readyAt, … }: the current one
  #wasReady = false;
  #closing = null; // the promise of close()
  #attempts = 0;
  #timer = 0; // until the next attempt
  #session = null; // the hub recognises a publish that is sent again in the same session only
  #maxBytes = Infinity;
  #subscriptions = new Map(); // topic -> Inbox
  #waiting = new Map(); // id -> request that has no answer yet
  #line = []; // requests beyond MAX_UNANSWERED
  #unanswered = 0;
  #gap = 0; // between two requests, after the hub asked to slow down
  #freeAt = 0;
  #isPaused = false;
  #acked = new Set(); // keys
  #ackIds = new Map(); // key -> ids of its deliveries on this connection
  #unclaimed = new Map(); // key -> message of a durable subscription that nobody here takes yet. The hub does not send it again

  constructor(server, options = {}) {
    const { address, token, capabilities = ["client"], metadata = {}, ttl = 300_000, timeout = 10_000, parse = JSON.parse } = options;
    if (address !== undefined && !/^@\([a-z0-9-]+\/[a-z0-9-]+\)$/.test(address)) {
      throw invalid(`address is ${JSON.stringify(address)}, expected @(kind/name)`, "use lower-case letters, digits and -, as in @(browser/page-1)");
    }
    if (!Array.isArray(capabilities) || !capabilities.length) throw invalid(`capabilities is ${JSON.stringify(capabilities)}, expected a list of one word or more`);
    if (!(ttl >= 1_000 && ttl <= 3_600_000)) throw invalid(`ttl is ${ttl}, expected milliseconds from 1000 to 3600000`);
    if (!(timeout > 0)) throw invalid(`timeout is ${timeout}, expected milliseconds, more than 0`);
    this.#WebSocket = options.WebSocket ?? globalThis.WebSocket;
    if (!this.#WebSocket) throw invalid("there is no global WebSocket", "use Node.js 22, or pass WebSocket of the package ws as an option");
    this.url = hubUrl(server ?? globalThis.location?.origin);
    this.#isMadeUp = address === undefined;
    this.address = address ?? `@(js/${newId()})`;
    this.#options = { ...options, capabilities, metadata };
    this.#token = token;
    this.#timeout = timeout;
    this.#ttl = ttl;
    this.#parse = parse;
  }

  get state() { return this.#state; }
  get error() { return this.#error; }

  // ── life ──

  /** Connect and register. Rejects if the first attempt fails, unless `retryConnect` is set. */
  connect() {
    if (this.#state !== "new" || this.#closing) return Promise.reject(this.#error ?? new HubError("failed_precondition", "connect() was called before", { hint: "make another HubClient to connect again" }));
    this.#open();
    return this.#opened.promise;
  }

  /** Try to reconnect now instead of waiting, as after the browser's event `online`. */
  reconnect() { if (this.#state === "waiting") this.#open(); }

  /** Leave the hub: iterations end after what they have received, and durable subscriptions wait for the next time. Safe twice. */
  close() { return this.#closing ??= this.#close(); }

  async #close() {
    if (this.#state === "failed") return;
    clearTimeout(this.#timer);
    const connection = this.#connection;
    if (connection?.isReady) {
      await Promise.race([this.#askNow("hub:disconnect", { reason: "client_requested" }).catch(() => {}), new Promise((resolve) => { connection.goodbye = setTimeout(resolve, GOODBYE); })]);
    }
    const error = new HubError("closed", "the client is closed", { hint: "make another HubClient to connect again" });
    this.#leave();
    this.#end("closed", error);
    for (const inbox of this.#subscriptions.values()) inbox.close(error, { drop: false });
  }

  // ── topics ──

  /** Subscribe to a topic or pattern, now or as soon as there is a connection, and again on each later one. */
  subscribe(topic, options = {}) {
    if (typeof topic !== "string" || !topic) throw invalid(`topic is ${JSON.stringify(topic)}, expected a topic or a pattern`);
    this.#check();
    if (this.#subscriptions.has(topic)) throw new HubError("failed_precondition", `this client subscribes to ${topic} already`, { hint: "use that subscription, or unsubscribe first" });
    const inbox = new Inbox(topic, options, { taken: () => this.#flow(), unsubscribe: () => this.#unsubscribe(topic, inbox) });
    this.#subscriptions.set(topic, inbox);
    const connection = this.#connection;
    if (connection?.isReady) this.#attach(inbox).catch((error) => this.#refused(connection, inbox, error));
    return new HubSubscription(inbox);
  }

  /** End a subscription of this address for good. Messages that wait for a durable one are dropped. */
  unsubscribe(topic) { return this.#unsubscribe(topic, this.#subscriptions.get(topic)); }

  /** Send data, any JSON value, to all subscribers of a topic. Where the topic has a log, it is stored when this resolves. */
  publish(topic, data = null, { type = "message", ttl } = {}) {
    return this.#ask("hub:publish", { topic, type, data }, { ttl });
  }

  /** Acknowledge messages of durable subscriptions. */
  async ack(...messages) {
    this.#check();
    if (messages.some((message) => message.ackId === null)) throw invalid("a message has no ackId", "acknowledge messages of subscriptions with durable: true only");
    const keys = messages.map(keyOf);
    for (const key of keys) remember(this.#acked, key);
    // What came over an earlier connection has no ids here: the hub delivers it again, and it is acknowledged then.
    const ids = keys.flatMap((key) => this.#ackIds.get(key) ?? []);
    for (const inbox of this.#subscriptions.values()) if (inbox.durable) keys.forEach((key) => inbox.settled(key));
    const parts = Array.from({ length: Math.ceil(ids.length / MAX_ACKS) }, (_, part) => ids.slice(part * MAX_ACKS, (part + 1) * MAX_ACKS));
    await Promise.all(parts.map((ackIds) => this.#ask("hub:ack", { ackIds })));
    for (const key of keys) this.#ackIds.delete(key);
  }

  /** The topics and patterns that have subscribers, by name. */
  topics(prefix = "", { limit = 100, offset = 0 } = {}) { return this.#ask("hub:list_topics", { prefix, limit, offset }); }

  /** What the hub knows of a topic. */
  topicInfo(topic) { return this.#ask("hub:topic_info", { topic }); }

  /** The addresses of those who subscribe to a topic or pattern by that very name. */
  async presence(topic) { return (await this.#ask("hub:presence", { topic })).actors; }

  // ── actors ──

  /** Send data to one actor; HubError `unknown_actor` if that address is not registered. */
  async send(to, data = null, { type = "message", ttl } = {}) {
    await this.#ask("hub:send", { to, type, data }, { ttl, isRepeatable: false });
  }

  /** Send data to all actors, or to those with a capability; resolves to how many received it. */
  async broadcast(data = null, { type = "message", capability = null, includeSelf = false } = {}) {
    const payload = { type, data, excludeSelf: !includeSelf, targetCapability: capability };
    return (await this.#ask("hub:broadcast", payload, { isRepeatable: false })).deliveredCount;
  }

  /** Actors whose address matches a pattern, with all of these capabilities and this metadata; all actors without arguments. */
  discover({ pattern = null, capabilities = [], metadata = {}, limit = 100, offset = 0 } = {}) {
    return this.#ask("hub:discover", { pattern, capabilities, metadata, limit, offset });
  }

  /** Continue with another token of the same actor, before the last one expires. A function as `token` does that by itself. */
  async refreshToken(token) {
    const { expiresAt = null } = await this.#ask("hub:refresh_token", { token });
    if (typeof this.#token !== "function") this.#token = token;
    return { expiresAt };
  }

  // ── requests ──

  #check() { if (this.#error ?? this.#closing) throw this.#error ?? new HubError("closed", "the client is closed"); }

  async #ask(type, payload, { isRepeatable = true, ttl } = {}) {
    this.#check();
    const request = this.#request(type, payload, { isRepeatable, ttl });
    if (this.#unanswered < MAX_UNANSWERED) this.#start(request);
    else this.#line.push(request);
    try {
      return await request.promise;
    } finally {
      if (request.isStarted) {
        this.#unanswered -= 1;
        while (this.#line.length && this.#line[0].isSettled) this.#line.shift();
        if (this.#line.length) this.#start(this.#line.shift());
      }
    }
  }

  // On this very connection, greeted or not.
  #askNow(type, payload, onReply) {
    const request = this.#request(type, payload, { onReply, isNow: true });
    this.#waiting.set(request.id, request);
    this.#turn(request);
    return request.promise;
  }

  #request(type, payload, { onReply, isRepeatable = false, isNow = false, ttl }) {
    const request = { id: newId(), type, onReply, isRepeatable, isNow, isSent: false, isSettled: false, isStarted: false, delay: 0, ...deferred() };
    try {
      // Without a timestamp its TTL counts from when the hub receives it: no two clocks agree.
      request.text = JSON.stringify({ type, id: request.id, from: this.address, to: HUB, pattern: "ask", ...(ttl === undefined ? {} : { ttl }), payload });
    } catch (error) {
      throw invalid(`${type} cannot be written as JSON: ${error.message}`, "send objects, lists, strings, numbers, booleans and null", error);
    }
    request.timer = setTimeout(() => this.#settle(request, this.#late(request)), this.#timeout);
    return request;
  }

  #late({ type, isSent }) {
    if (isSent) return new HubError("timeout", `the hub did not answer ${type} within ${this.#timeout} ms`, { hint: "it may or may not have been executed", retryable: true });
    if (!this.#connection?.isReady) return new HubError("unreachable", `no connection to ${this.url}: ${this.#problem}`, { hint: "see whether the server runs, and try again", retryable: true });
    return new HubError("timeout", `${type} waited ${this.#timeout} ms for its turn`, { hint: "send less at once, or raise timeout or the server's hub_rate_limit", retryable: true });
  }

  #start(request) {
    request.isStarted = true;
    this.#unanswered += 1;
    this.#waiting.set(request.id, request);
    this.#turn(request);
  }

  // Send it when it may be sent: at once, or after a rate limit one request after another.
  #turn(request) {
    const now = Date.now();
    if (now > this.#freeAt + FORGOTTEN) this.#gap = 0;
    const at = this.#gap ? Math.max(now, this.#freeAt) : now;
    if (this.#gap) this.#freeAt = at + this.#gap;
    if (at > now) request.delay = setTimeout(() => { request.delay = 0; this.#transmit(request); }, at - now);
    else this.#transmit(request);
  }

  #transmit(request) {
    const connection = this.#connection;
    if (request.isSettled || request.isSent || request.delay || !connection?.socket || !(request.isNow || connection.isReady)) return;
    const size = request.text.length * 3 > this.#maxBytes ? new TextEncoder().encode(request.text).length : 0;
    if (size > this.#maxBytes) { // the hub could not say which request it did not read
      const hint = "send less at once, or raise the server's hub_max_message_bytes";
      this.#settle(request, new HubError("message_too_large", `the message has ${size} bytes, expected at most ${this.#maxBytes}`, { hint }));
      return;
    }
    request.isSent = true;
    if (connection.socket.readyState === 1) connection.socket.send(request.text); // else it is about to close, which is noticed
  }

  #settle(request, error, value) {
    if (request.isSettled) return;
    request.isSettled = true;
    clearTimeout(request.timer);
    clearTimeout(request.delay);
    this.#waiting.delete(request.id);
    if (error) request.reject(error);
    else request.resolve(value);
  }

  // ── one connection after another ──

  async #open() {
    clearTimeout(this.#timer);
    const connection = this.#connection = { socket: null, isReady: false, readyAt: 0, farewell: "" };
    this.#change("connecting");
    try {
      connection.token = await this.#nextToken();
      if (this.#connection !== connection) return;
      const socket = connection.socket = new this.#WebSocket(this.url);
      connection.opening = setTimeout(() => this.#lost(connection, this.#unreachable(`no answer within ${this.#timeout} ms`)), this.#timeout);
      socket.onopen = () => this.#greet(connection).catch((error) => this.#lost(connection, error));
      socket.onmessage = (event) => this.#connection === connection && this.#receive(connection, event.data);
      socket.onerror = () => {}; // the close that follows is enough; without a listener, some WebSockets throw
      socket.onclose = (event) => this.#lost(connection, this.#closed(connection, event));
    } catch (error) {
      this.#lost(connection, error);
    }
  }

  async #nextToken() {
    if (typeof this.#token !== "function") return this.#token;
    let timer = 0;
    const late = new Promise((_, reject) => { timer = setTimeout(() => reject(new Error(`no result within ${this.#timeout} ms`)), this.#timeout); });
    try {
      return await Promise.race([this.#token(), late]);
    } catch (cause) { // its message may hold the token
      throw new HubError("unreachable", "the function that returns the token failed", { hint: "see the cause of this error", retryable: true, cause });
    } finally {
      clearTimeout(timer);
    }
  }

  #unreachable(problem) { return new HubError("unreachable", problem, { retryable: true, details: { url: this.url } }); }

  #closed(connection, { code, reason }) {
    const isTokenOver = code === 4001 && connection.readyAt && typeof this.#token === "function";
    if (FINAL.has(code) && !isTokenOver) {
      const [word, problem, hint] = FINAL.get(code);
      return new HubError(word, problem, { hint, details: { closeCode: code } });
    }
    return this.#unreachable(connection.farewell || reason || (connection.readyAt ? "the connection broke" : "the server cannot be reached"));
  }

  async #greet(connection) {
    clearTimeout(connection.opening);
    const { token } = connection, ttl = this.#ttl, resume = this.#session;
    const connected = await this.#askNow("hub:connect", { version: "1.0", ...(resume ? { resume } : {}), ...(token ? { jwt: token } : {}) });
    this.#session = connected.sessionId;
    this.#maxBytes = connected.maxMessageSize ?? Infinity;
    if (this.#isMadeUp && connected.actorIdentity) this.address = connected.actorIdentity;
    const { capabilities, metadata } = this.#options;
    let { renewalToken } = await this.#askNow("hub:register", { actorAddress: this.address, capabilities, metadata, ttl });
    const left = () => [...this.#subscriptions.values()].filter((inbox) => !inbox.isAsked);
    while (left().length) { // some may be added meanwhile
      await Promise.all(left().map((inbox) => this.#attach(inbox).catch((error) => {
        if (error.retryable || this.#connection !== connection) throw error;
        this.#refused(connection, inbox, error);
      })));
    }
    if (this.#connection !== connection) return;
    connection.isReady = this.#wasReady = true;
    connection.readyAt = Date.now();
    const guard = (error) => this.#lost(connection, this.#unreachable(error.message));
    connection.beat = setInterval(() => this.#askNow("hub:heartbeat", {}).catch(guard), Math.min(HEARTBEAT, connected.heartbeatInterval ?? HEARTBEAT));
    connection.renewal = setInterval(async () => {
      try {
        renewalToken = (await this.#askNow("hub:renew", { renewalToken, actorAddress: this.address, ttl })).newRenewalToken;
      } catch (error) { guard(error); }
    }, ttl * RENEW_AT);
    this.#flush();
    this.#flow();
    this.#change("connected");
    this.#opened.resolve();
  }

  #flush() { for (const request of [...this.#waiting.values()]) this.#transmit(request); }

  // A connection has ended: reconnect, at once the first time, or fail for good.
  #lost(connection, error) {
    if (this.#connection !== connection || this.#closing) return;
    if (!(error instanceof HubError)) error = new HubError("internal_error", `the client failed: ${error.message}`, { cause: error });
    this.#problem = error.message;
    this.#leave();
    const mayReturn = error.retryable || (error.reason === "expired_token" && connection.readyAt && typeof this.#token === "function");
    if (!mayReturn || !(this.#wasReady || this.#options.retryConnect)) {
      const final = error.details.url ? new HubError("unreachable", `no connection to ${this.url}: ${error.message}`, { hint: "see whether the server runs, and the address is right", retryable: true }) : error;
      this.#end("failed", final);
      for (const inbox of this.#subscriptions.values()) inbox.fail(final);
      return;
    }
    if (connection.readyAt && Date.now() - connection.readyAt >= STEADY) this.#attempts = 0;
    this.#attempts += 1;
    const retryIn = reconnectDelay(this.#attempts, Math.random(), this.#options.backoff);
    this.#timer = setTimeout(() => this.#open(), retryIn);
    this.#change("waiting", { problem: error.message, retryIn });
  }

  #leave() {
    const connection = this.#connection;
    this.#connection = null;
    this.#isPaused = false;
    this.#ackIds.clear();
    this.#unclaimed.clear();
    if (!connection) return;
    for (const timer of [connection.opening, connection.goodbye, connection.beat, connection.renewal]) clearTimeout(timer);
    if (connection.socket) {
      connection.socket.onopen = connection.socket.onmessage = connection.socket.onclose = null;
      connection.socket.close();
    }
    for (const inbox of this.#subscriptions.values()) inbox.broke();
    for (const request of [...this.#waiting.values()]) {
      if (request.isNow) this.#settle(request, this.#unreachable("the connection broke"));
      else if (request.isSent && !request.isRepeatable) {
        const hint = "it may or may not have been executed; call it again if doing it twice does no harm";
        this.#settle(request, new HubError("connection_lost", `the connection broke before the hub answered ${request.type}`, { hint, retryable: true }));
      } else request.isSent = false;
    }
  }

  #end(state, error) {
    clearTimeout(this.#timer);
    this.#error = error;
    for (const request of [...this.#waiting.values(), ...this.#line.splice(0)]) this.#settle(request, error);
    this.#opened.reject(error);
    this.#change(state, { problem: error.message, error });
  }

  #change(state, { problem = "", retryIn = 0, error = null } = {}) {
    this.#state = state;
    try { this.#options.onState?.({ state, problem, retryIn, error }); } catch (thrown) { throwLater(thrown); }
  }

  // The token expired, and there is a way to another: continue with it on the same connection.
  async #refresh(connection) {
    if (!connection.isReady) return; // it is under way
    connection.isReady = false;
    try {
      const token = await this.#nextToken();
      if (this.#connection !== connection) return;
      await this.#askNow("hub:refresh_token", { token });
      connection.isReady = true;
      this.#flush();
    } catch (error) {
      this.#lost(connection, this.#unreachable(error.message)); // the next connection asks for a token again, and fails clearly
    }
  }

  // ── subscriptions on a connection ──

  async #attach(inbox) {
    await this.#askNow("hub:subscribe", inbox.ask(), (reply) => {
      inbox.subscribed(reply);
      for (const [key, message] of this.#unclaimed) if (inbox.offer(message)) this.#unclaimed.delete(key);
    });
    if (inbox.wantsPresence) this.#askNow("hub:presence", { topic: inbox.topic }, (reply) => inbox.presence(reply)).catch(() => {});
    if (inbox.error) this.#drop(inbox);
  }

  #refused(connection, inbox, error) {
    if (error.code === "unreachable") return; // the next connection subscribes
    if (error.code === "timeout") { this.#lost(connection, this.#unreachable(error.message)); return; }
    this.#drop(inbox);
    inbox.fail(error);
  }

  #drop(inbox) { if (this.#subscriptions.get(inbox.topic) === inbox) this.#subscriptions.delete(inbox.topic); }

  async #unsubscribe(topic, inbox) {
    if (inbox) {
      const isAsked = inbox.isAsked;
      this.#drop(inbox);
      inbox.close(new HubError("closed", `${topic} was unsubscribed`), { drop: true });
      this.#flow();
      if (this.#error || (!inbox.durable && !isAsked)) return;
      if (!inbox.durable) { await this.#askNow("hub:unsubscribe", { topic }).catch(() => {}); return; } // it ends with the connection in any case
    }
    await this.#ask("hub:unsubscribe", { topic });
    for (const [key, message] of this.#unclaimed) if (covers(topic, message.topic)) this.#unclaimed.delete(key);
  }

  // Ask the hub to hold messages back while a reader is behind; answers still come.
  #flow() {
    if (!this.#connection?.isReady) return;
    const inboxes = [...this.#subscriptions.values()];
    if (!this.#isPaused && inboxes.some((inbox) => inbox.waiting >= inbox.maxWaiting)) {
      this.#isPaused = true;
      this.#askNow("hub:pause", { reason: "messages come faster than they are taken" }).catch(() => {});
    } else if (this.#isPaused && inboxes.every((inbox) => inbox.waiting <= inbox.maxWaiting / 2)) {
      this.#isPaused = false;
      this.#askNow("hub:resume", {}).catch(() => {});
    }
  }

  // ── what the hub sends ──

  #receive(connection, text) {
    let envelope;
    try {
      envelope = this.#parse(text);
      if (typeof envelope.type !== "string") throw new TypeError("it has no type");
    } catch (cause) {
      this.#lost(connection, new HubError("failed_precondition", `what answers at ${this.url} is no hub`, { hint: "check the address", cause }));
      return;
    }
    if (!envelope.type.startsWith("hub:")) { this.#deliver(envelope); return; }
    const { type, payload } = envelope, request = this.#waiting.get(envelope.correlationId);
    if (type === "hub:error" && this.#isTokenOver(connection, request, payload)) {
      if (request) request.isSent = false; // the hub has done nothing
      this.#refresh(connection);
    } else if (request) this.#answer(request, type, payload);
    else if (type === "hub:presence") this.#presence(payload);
    else if (type === "hub:disconnect") connection.farewell = payload.message;
    else if (type === "hub:unregistered") this.#lost(connection, this.#unreachable("the registration ran out"));
    else if (type === "hub:error" && this.#subscriptions.has(payload.details?.topic)) { // a new token does not allow it
      this.#refused(connection, this.#subscriptions.get(payload.details.topic), refusal(payload));
    }
  }

  #isTokenOver(connection, request, payload) {
    return payload.details?.reason === "expired_token" && connection.readyAt && typeof this.#token === "function" && request?.type !== "hub:refresh_token";
  }

  #answer(request, type, payload) {
    if (type === "hub:unknown_actor") {
      this.#settle(request, new HubError("unknown_actor", payload.message, { hint: "see who is registered with discover()", details: { actorAddress: payload.actorAddress } }));
    } else if (type !== "hub:error") {
      request.onReply?.(payload); // before the next message is looked at
      this.#settle(request, null, payload);
    } else if (payload.code === "rate_limited" && payload.details?.retryAfter !== undefined) {
      // Those that were refused together must not be sent again together, or most would be refused again.
      const { retryAfter, limit } = payload.details;
      this.#gap = Math.max(1_000 * (limit > 0 ? 1 / limit : retryAfter), 0.001);
      this.#freeAt = Math.max(this.#freeAt, Date.now() + retryAfter * 1_000);
      request.isSent = false;
      this.#turn(request);
    } else this.#settle(request, refusal(payload));
  }

  #presence(payload) {
    const inbox = this.#subscriptions.get(payload.topic);
    if (inbox?.wantsPresence) inbox.presence(payload);
  }

  #deliver(envelope) {
    const message = new HubMessage(envelope, (one) => this.ack(one)), key = message.ackId === null ? "" : keyOf(message);
    if (message.topic === null) {
      try { this.#options.onDirect?.(message); } catch (error) { throwLater(error); }
      return;
    }
    if (key && this.#acked.has(key)) { // over a connection that broke, or as the copy of another subscription
      this.#askNow("hub:ack", { ackIds: [message.ackId] }).catch(() => {});
      return;
    }
    if (key) remember(this.#ackIds, key, [...this.#ackIds.get(key) ?? [], message.ackId]);
    const offered = [...this.#subscriptions.values()].map((inbox) => inbox.offer(message));
    if (key && !offered.includes(true)) remember(this.#unclaimed, key, message);
    this.#flow();
  }
}

function refusal({ code, message, resolution, details = {} }) {
  return new HubError(code, message, { reason: details.reason, hint: resolution, retryable: details.retryable === true, details });
}

function invalid(problem, hint = "", cause = undefined) { return new HubError("invalid_argument", problem, { hint, cause }); }

function hubUrl(server) {
  const hint = "give http://HOST:8085 or https://HOST:8085, or the WebSocket itself: ws://HOST:8085/ws";
  let url = null;
  try { url = new URL(server); } catch { /* the next line reports it */ }
  if (!url || !/^(https?|wss?):$/.test(url.protocol) || !url.hostname) throw invalid(`server is ${JSON.stringify(server) ?? server}, expected the address of a server`, hint);
  if (url.username || url.password || url.search || url.hash) { // what stands there may be a secret: it is not repeated
    throw invalid(`server has more than a host, a port and a path (the host is ${url.hostname})`, `${hint}; a token is an option`);
  }
  const isSocket = url.protocol.startsWith("ws");
  if (!isSocket && url.pathname !== "/") throw invalid(`server has the path ${url.pathname}, expected a host and a port`, hint);
  if (!isSocket) url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  if (url.pathname === "/") url.pathname = "/ws";
  return url.href;
}

// Not crypto.randomUUID, which pages have over https and on localhost only.
function newId() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

// A promise that somebody else settles. A rejection that nobody waits for is no unhandled one.
function deferred() {
  let resolve, reject;
  const promise = new Promise((...both) => { [resolve, reject] = both; });
  promise.catch(() => {});
  return { promise, resolve, reject };
}

function remember(collection, key, value) {
  if (collection instanceof Set) collection.add(key);
  else collection.set(key, value);
  if (collection.size > MAX_REMEMBERED) collection.delete(collection.keys().next().value);
}

// What a callback throws must not end the connection: it becomes an uncaught error, as that of an event listener does.
function throwLater(error) {
  if (globalThis.reportError) globalThis.reportError(error);
  else queueMicrotask(() => { throw error; });
}
