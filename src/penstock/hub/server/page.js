// The page at /hub: the client of the hub, to try in a browser.

import { HubClient } from "./client.js";

const byId = (id) => document.getElementById(id);
const SHOWN = 500;

// Everything shown is set as text, never as HTML: what others publish cannot become part of this page.
function make(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "onclick") node.addEventListener("click", value);
    else if (value !== undefined && value !== null && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

// Numbers that a browser cannot hold, such as ids of 64 bits, stay as they were written, where the browser knows how.
function parse(text) {
  return JSON.parse(text, (_, value, context) => typeof value === "number" && context && JSON.rawJSON && String(value) !== context.source ? JSON.rawJSON(context.source) : value);
}

const STATES = { closed: ["soft", "not connected"], connecting: ["warn", "connecting …"], connected: ["good", "connected"], waiting: ["warn", ""], failed: ["bad", "disconnected"] };
const topics = new Map(); // pattern -> its subscription, null before the first connection
const seen = new WeakSet(); // messages: one that several patterns cover is shown once
let hub = null, received = 0, countdown = 0;

const isOver = () => hub === null || hub.state === "closed" || hub.state === "failed";

function drawState({ state, problem, retryIn }) {
  clearInterval(countdown);
  const [style, words] = STATES[state], pill = byId("status");
  pill.className = `status ${style}`;
  pill.textContent = words;
  if (state === "waiting") {
    const until = Date.now() + retryIn;
    const tell = () => { pill.textContent = retryIn < 300 ? "reconnecting …" : `reconnecting in ${Math.max(1, Math.ceil((until - Date.now()) / 1000))} s`; };
    tell();
    countdown = setInterval(tell, 1000);
  }
  byId("now").hidden = state !== "waiting" || retryIn < 300;
  byId("send").disabled = byId("disconnect").disabled = isOver();
  byId("connect").textContent = isOver() ? "Connect" : "Reconnect";
  byId("connect").className = isOver() ? "main" : "";
  byId("problem").textContent = state === "failed" || state === "waiting" ? problem : "";
  if (state === "failed" && problem.includes("token")) { byId("with-token").open = true; byId("token").focus(); }
  drawTopics();
}

function subscribe(pattern, since) {
  const mine = hub;
  let hasStarted = false;
  const subscription = hub.subscribe(pattern, {
    since,
    onMessage(message) { if (!seen.has(message)) { seen.add(message); show(message); } },
    onPresence: () => drawTopics(),
    onGap: () => notice(`Messages of ${pattern} may be missing here: the hub could not bring everything that was published meanwhile.`),
    onError(error) {
      if (hub !== mine || mine.error || topics.get(pattern) !== subscription) return; // the end of the whole connection is shown as such
      topics.delete(pattern);
      if (hasStarted) notice(`${pattern}: ${error.message}`);
      else complain(error.message);
      drawTopics();
      remember();
    },
  });
  subscription.ready.then(() => { hasStarted = true; }, () => {});
  topics.set(pattern, subscription);
  return subscription;
}

function notice(text) { add(make("li", { class: "notice" }, text)); }

function complain(text) {
  byId("topic-note").textContent = text;
  byId("topic-note").hidden = !text;
}

function add(row) {
  const list = byId("messages"), isAtTop = list.scrollTop < 4, before = list.scrollHeight;
  list.hidden = false;
  byId("empty").hidden = true;
  list.prepend(row);
  while (list.children.length > SHOWN) list.lastElementChild.remove();
  if (!isAtTop) list.scrollTop += list.scrollHeight - before; // what is being read stays where it is
}

function show(message) {
  const at = message.sentAt ?? new Date();
  const sender = make("span", { class: "sender name" }, message.sender);
  sender.style.setProperty("--hue", hue(message.sender));
  received += 1;
  byId("count").textContent = `(${received.toLocaleString("en")})`;
  add(make("li", { class: "fresh" },
    make("div", { class: "facts" },
      make("time", { datetime: at.toISOString() }, at.toLocaleTimeString("en-GB")),
      make("span", { class: "name topic-name" }, message.topic ?? "to you"),
      make("span", { class: "name" }, message.type),
      sender,
      message.position === null ? null : make("span", { class: "place", title: `epoch ${message.position.epoch}` }, `#${message.position.offset}`)),
    make("pre", {}, typeof message.data === "string" ? message.data : written(message.data))));
}

// JSON on one line, with a space behind each comma and colon.
function written(value) {
  return JSON.stringify(value, null, 1).replace(/([{[])\n\s*/g, "$1").replace(/\n\s*([}\]])/g, "$1").replace(/\n\s*/g, " ");
}

function drawTopics() {
  byId("topics").replaceChildren(...[...topics].map(([pattern, subscription]) => {
    const there = subscription?.isSubscribed ? [...subscription.present].sort() : [];
    const who = make("ul", { class: "who", "aria-label": `Who listens to ${pattern}` }, ...there.slice(0, 12).map((actor) => {
      const one = make("li", { class: "name" }, actor === hub.address ? "you" : actor);
      one.style.setProperty("--hue", hue(actor));
      return one;
    }), there.length > 12 ? `and ${there.length - 12} more` : "");
    return make("li", { class: "topic" },
      make("div", { class: "row" }, make("span", { class: "name" }, pattern), make("button", { class: "small", type: "button", "aria-label": `Leave ${pattern}`, onclick: () => leave(pattern) }, "Leave")),
      there.length ? who : null);
  }));
}

function hue(text) {
  let sum = 0;
  for (const letter of text) sum = (sum * 31 + letter.codePointAt(0)) % 360;
  return sum;
}

function remember() {
  try {
    sessionStorage.setItem("penstock-hub", JSON.stringify({ address: byId("address").value, topics: [...topics.keys()] }));
  } catch { /* a browser that keeps nothing: the next visit starts from the beginning */ }
}

async function listen(pattern) {
  complain("");
  if (topics.has(pattern)) return; // again it would not know what it has seen
  const subscription = isOver() ? null : subscribe(pattern, null);
  if (subscription === null) topics.set(pattern, null);
  drawTopics();
  remember();
  try {
    if (hub.state === "connected") await subscription.ready;
    byId("pattern").value = "";
  } catch { /* onError shows it, and what was typed stays */ }
}

async function leave(pattern) {
  const next = topics.get(pattern)?.unsubscribe().catch(() => {});
  topics.delete(pattern);
  drawTopics();
  remember();
  byId("pattern").focus();
  await next;
}

function start() {
  const address = byId("address").value, token = byId("token").value.trim() || undefined;
  hub?.close();
  byId("me").textContent = address;
  const mine = hub = new HubClient(location.origin, {
    address, token, parse, capabilities: ["page"], retryConnect: true,
    onState: (change) => { if (hub === mine) drawState(change); },
    onDirect: show,
  });
  for (const [pattern, subscription] of topics) subscribe(pattern, subscription?.position ?? null);
  remember();
  hub.connect().catch(() => {}); // drawState shows it
}

byId("connection").addEventListener("submit", (event) => { event.preventDefault(); start(); });
byId("disconnect").addEventListener("click", () => hub.close());
byId("now").addEventListener("click", () => hub.reconnect());
window.addEventListener("online", () => { hub.reconnect(); });
byId("subscription").addEventListener("submit", (event) => { event.preventDefault(); listen(byId("pattern").value.trim()); });
byId("clear").addEventListener("click", () => { byId("messages").replaceChildren(); byId("messages").hidden = true; byId("empty").hidden = false; received = 0; byId("count").textContent = ""; });
byId("data").addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("publish").requestSubmit(); });
byId("publish").addEventListener("submit", async (event) => {
  event.preventDefault();
  const note = byId("published"), text = byId("data").value;
  let data = text;
  try { data = parse(text); } catch { /* then it is text */ }
  note.className = "note soft";
  note.textContent = hub.state === "connected" ? "" : "waiting for a connection …";
  try {
    const { subscriberCount } = await hub.publish(byId("topic").value.trim(), data, { type: byId("type").value.trim() });
    const asText = data === text && /^\s*[{[]/.test(text) ? ", as text: this is no JSON" : "";
    note.textContent = `reached ${subscriberCount} ${subscriberCount === 1 ? "subscriber" : "subscribers"}${asText}`;
  } catch (error) {
    note.className = "note bad";
    note.textContent = error.message;
  }
});

let known = {};
try { known = JSON.parse(sessionStorage.getItem("penstock-hub")) ?? {}; } catch { /* then nothing is known */ }
byId("address").value = known.address || `@(browser/${crypto.getRandomValues(new Uint32Array(1))[0].toString(16).padStart(8, "0")})`;
for (const pattern of known.topics ?? []) topics.set(pattern, null);
start();
