// What the console decides without a browser: formats, the store, the scale of a timeline, charts and the live connection.

import assert from "node:assert/strict";
import test from "node:test";

// The folder with a copy of the console's modules, which Node.js takes for ES modules there.
const at = (name) => import(new URL(`${name}.js`, `file://${process.env.CONSOLE_MODULES}/`));
const format = await at("format"), { Store } = await at("store"), timeline = await at("timeline"), chart = await at("chart"), { Live } = await at("live"), { forms } = await at("pages/payload");

test("spans read at every size", () => {
  const expected = [[0, "0 ms"], [0.4, "0.4 ms"], [31, "31 ms"], [999.4, "999 ms"], [1000, "1.0 s"], [4290, "4.2 s"], [59999, "59 s"], [125000, "2 min 5 s"], [120000, "2 min"], [22320000, "6 h 12 min"], [273600000, "3 d 4 h"], [null, "–"], [-1500, "-1.5 s"]];
  for (const [ms, text] of expected) assert.equal(format.span(ms), text);
});

test("a rate or a share without events is a dash", () => {
  assert.deepEqual([null, undefined, 0, 0.04, 2.34, 118.2, 12345].map(format.rate), ["–", "–", "–", "<0.1", "2.3", "118", "12.3k"]);
  assert.deepEqual([[0, 0], [0, 3], [3, 3], [1, 3], [99999, 100000], [1, 100000]].map(([part, total]) => format.percent(part, total)), ["–", "0 %", "100 %", "33.3 %", "99.9 %", "<0.1 %"]);
});

test("numbers, sizes and times", () => {
  assert.deepEqual([0, 999, 9999, 12345, 4100000].map(format.short), ["0", "999", "9,999", "12.3k", "4.1M"]);
  assert.deepEqual([0, 1023, 1536, 5 * 1024 ** 3].map(format.bytes), ["0 B", "1023 B", "1.5 KiB", "5.0 GiB"]);
  assert.equal(format.ago(1000, 66000), "1 min ago");
  assert.equal(format.ago(66000, 1000), "in 1 min");
  assert.equal(format.ago(1000, 1400), "now");
  assert.equal(format.instant("2026-11-18T17:00:00.123456Z"), Date.UTC(2026, 10, 18, 17, 0, 0, 123) + 0.456);
  assert.equal(format.exact(Date.UTC(2026, 10, 18, 7, 0, 5, 9), true), "2026-11-18 07:00:05.009 UTC");
  assert.equal(format.middle("06605cf6b1e9700000010000000001", 16), "06605cf…00000001");
  assert.equal(format.plural(1, "letter"), "1 letter");
  assert.equal(format.plural(1204, "letter"), "1,204 letters");
});

test("JSON is indented from its text, so that no number and no key changes", () => {
  const text = '{"id":12345678901234567890,"price":1.0,"a":[],"b":{ },"s":"x,\\"{y}\\\\","a":[1,[2]]}';
  const shown = format.indentJson(text);
  assert.match(shown, /"id": 12345678901234567890,\n  "price": 1\.0,\n  "a": \[\],\n  "b": \{\},/);
  assert.match(shown, /"s": "x,\\"\{y\}\\\\",/);
  assert.equal(shown.replace(/\s/g, ""), text.replace(/\s/g, ""));
  assert.equal(format.indentJson('{"a": 1'), null);
  assert.equal(format.indentJson('"a b"'), '"a b"');
});

test("bytes are dumped with their text", () => {
  const lines = format.hexDump(Uint8Array.from({ length: 18 }, (_, index) => index + 60)).split("\n");
  assert.equal(lines[0], "00000000  3c 3d 3e 3f 40 41 42 43 44 45 46 47 48 49 4a 4b  <=>?@ABCDEFGHIJK");
  assert.equal(lines[1].slice(0, 15), "00000010  4c 4d");
});

test("characters that hide or reorder text become visible, and names are quoted for a shell", () => {
  assert.equal(format.visible("a\u202etxt.exe\u0000\n\tb"), "a\\u202etxt.exe\\u0000\n\tb");
  assert.deepEqual(["mail", "a b", "it's", "$(x)"].map(format.quote), ["mail", "'a b'", "'it'\\''s'", "'$(x)'"]);
});

test("a payload is offered in every form that it has", () => {
  assert.deepEqual(Object.keys(forms({ text: '{"a": 1}', base64: null, is_json: true, is_cut: false })), ["JSON", "text", "hex"]);
  assert.deepEqual(Object.keys(forms({ text: '{"a"', base64: null, is_json: true, is_cut: true })), ["text", "hex"]);
  assert.match(forms({ text: null, base64: "AAE=", is_json: false, is_cut: false }).hex(), /^00000000 {2}00 01/);
});

test("a jump is an offset, a time, or refused", () => {
  assert.deepEqual(format.jump("1200"), { direction: "newer", offset: "1200" });
  assert.deepEqual(format.jump("2026-05-03T14:00:00Z"), { direction: "newer", time: "2026-05-03T14:00:00.000Z" });
  assert.deepEqual(format.jump(""), {});
  assert.equal(format.jump("the day before"), null);
});

test("many changes of the store are one call of each listener, and a listener that ended hears nothing", () => {
  const frames = [], seen = [], store = new Store((run) => frames.push(run));
  store.set("a", 1);
  const end = store.watch("a", (value) => seen.push(value));
  store.set("a", 2);
  store.set("a", 3);
  assert.equal(frames.length, 1);
  frames.shift()();
  assert.deepEqual(seen, [1, 3]);
  end();
  store.set("a", 4);
  frames.shift()();
  assert.deepEqual(seen, [1, 3]);
});

test("a scale shows milliseconds beside hours: long gaps are cut and named", () => {
  const hour = 3600000, { x, cuts } = timeline.scale([0, 7, 14, 14 + 7 * hour, 21 + 7 * hour], 700);
  assert.deepEqual(cuts.map((cut) => cut.length), [7 * hour]);
  assert.equal(x(0), 0);
  assert.equal(Math.round(x(21 + 7 * hour)), 700);
  assert.ok(x(7) > 50, "7 ms can be seen");
  assert.ok(x(14 + 7 * hour) - x(14) < 500, "7 h do not take everything");
  assert.ok(x(3) > 0 && x(3) < x(7));
  assert.deepEqual(timeline.scale([5], 700).cuts, []);
  assert.equal(timeline.scale([5], 700).x(5), 0);
});

test("folds become one row each, and everything else stays in order", () => {
  const events = Array.from({ length: 9 }, (_, index) => ({ kind: String(index) }));
  const rows = timeline.rows(events, [{ first: 1, count: 3, text: "extended × 3" }, { first: 6, count: 2, text: "nacked × 2" }]);
  assert.deepEqual(rows.map((row) => row.text ?? row.event.kind), ["0", "extended × 3", "4", "5", "nacked × 2", "8"]);
  assert.deepEqual(rows[1].events.map((event) => event.kind), ["1", "2", "3"]);
});

test("a path keeps the gaps of its data, and an axis ends at a round number", () => {
  assert.equal(chart.path([0, 10, null, 5, null, 10, 10], 10, 60, 100), "M0.0 100.0L10.0 0.0M30.0 50.0h0.1M50.0 0.0L60.0 0.0");
  assert.deepEqual([0, 0.3, 1, 7, 120, 501].map(chart.ceiling), [1, 0.5, 1, 10, 200, 1000]);
});

// ── the live connection ──

class Socket {
  static all = [];
  sent = [];
  constructor(url) { this.url = url; Socket.all.push(this); }
  send(text) { this.sent.push(JSON.parse(text)); }
  close() { this.isClosed = true; }
}

function connection() {
  Socket.all = [];
  const heard = [], timers = [];
  const note = (name) => (...args) => heard.push([name, ...args]);
  const live = new Live(() => ({ token: "pk_1", project: null }), { state: note("state"), welcome: note("welcome"), snapshot: note("snapshot"), error: note("error"), denied: note("denied") },
    { WebSocket: Socket, setTimeout: (run, ms) => timers.push({ run, ms }), clearTimeout: () => { timers.length = 0; }, now: () => 0, random: () => 0.5, url: "ws://here/console/live" });
  const tell = (frame) => Socket.all.at(-1).onmessage({ data: JSON.stringify(frame) });
  live.open();
  Socket.all.at(-1).onopen();
  return { live, heard, timers, tell, socket: () => Socket.all.at(-1) };
}

test("the first frame carries the token, and the view is watched after the welcome", () => {
  const { live, heard, tell, socket } = connection();
  live.watch({ view: "queues", key: "k" });
  assert.deepEqual(socket().sent, [{ token: "pk_1", project: null }]);
  tell({ type: "welcome", session: { version: "1" } });
  assert.deepEqual(socket().sent.at(-1), { watch: { view: "queues", key: "k" } });
  tell({ type: "snapshot", view: "overview", key: "old", data: {} });
  tell({ type: "snapshot", view: "queues", key: "k", data: { rows: [] } });
  assert.deepEqual(heard.filter(([name]) => name === "snapshot").map(([, frame]) => frame.key), ["k"]);
});

test("a server that is gone is tried again, later each time, and what was watched is watched again", () => {
  const { live, heard, timers, tell, socket } = connection();
  live.watch({ view: "queues", key: "k" });
  tell({ type: "welcome", session: {} });
  const waits = [];
  for (let round = 0; round < 7; round += 1) {
    socket().onclose({ code: 1006 });
    waits.push(timers.at(-1).ms);
    timers.at(-1).run();
  }
  assert.deepEqual(waits, [500, 1000, 2000, 4000, 8000, 10000, 10000]);
  assert.equal(heard.at(-1)[1], "gone");
  socket().onopen();
  tell({ type: "welcome", session: {} });
  assert.equal(live.state, "live");
  assert.deepEqual(socket().sent.at(-1), { watch: { view: "queues", key: "k" } });
});

test("a paused page gets nothing, a hidden one closes after ten seconds and comes back", () => {
  const { live, timers, tell, socket } = connection();
  live.watch({ view: "queues", key: "k" });
  tell({ type: "welcome", session: {} });
  live.pause();
  assert.deepEqual(socket().sent.at(-1), { watch: null });
  live.resume();
  assert.deepEqual(socket().sent.at(-1), { watch: { view: "queues", key: "k" } });
  const first = socket();
  live.hide();
  assert.equal(timers.at(-1).ms, 10000);
  timers.at(-1).run();
  assert.ok(first.isClosed);
  live.show();
  assert.notEqual(socket(), first);
});

test("a refused token is reported and not tried again", () => {
  const { live, heard, timers, tell, socket } = connection();
  tell({ type: "error", error: { message: "no such token" } });
  socket().onclose({ code: 4401 });
  assert.equal(live.state, "denied");
  assert.deepEqual(heard.at(-1), ["denied", { message: "no such token" }]);
  assert.equal(timers.length, 0);
});
