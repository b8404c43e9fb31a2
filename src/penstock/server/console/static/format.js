// Formats values for people. Pure: every function that depends on the time gets `now`. Times are milliseconds since 1970.

const NONE = "–";

const grouped = new Intl.NumberFormat("en");

export const count = (value) => (value === null || value === undefined ? NONE : grouped.format(value));

/** A large number in at most five characters: 12.3k, 4.1M. */
export function short(value) {
  if (value === null || value === undefined) return NONE;
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (Math.abs(value) >= size) {
      const scaled = value / (unit === "k" ? 1e3 : size);
      return `${scaled.toFixed(scaled < 100 ? 1 : 0)}${unit}`;
    }
  }
  return grouped.format(value);
}

/** Events per second. Nothing happened: a dash, never "0.0". */
export function rate(value) {
  if (!value) return NONE;
  return value < 0.1 ? "<0.1" : value < 10 ? value.toFixed(1) : short(Math.round(value));
}

/** A share of what ended; without anything that ended there is no share. */
export function percent(part, total) {
  if (!total) return NONE;
  const value = (100 * part) / total;
  return `${value === 0 || value === 100 ? value : value > 99.9 ? "99.9" : value < 0.1 ? "<0.1" : value.toFixed(1)} %`;
}

export const plural = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;

export function bytes(value) {
  if (value === null || value === undefined) return NONE;
  let unit = 0;
  for (; value >= 1024 && unit < 5; unit += 1) value /= 1024;
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][unit]}`;
}

/** How long: 31 ms, 4.2 s, 2 min 5 s, 6 h 12 min, 3 d 4 h. */
export function span(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return NONE;
  if (ms < 0) return `-${span(-ms)}`;
  if (ms < 10 && ms % 1) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 10000) return `${(Math.floor(ms / 100) / 10).toFixed(1)} s`;
  const seconds = Math.floor(ms / 1000);
  const two = (large, first, small, second) => (small ? `${large} ${first} ${small} ${second}` : `${large} ${first}`);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return two(Math.floor(seconds / 60), "min", seconds % 60, "s");
  if (seconds < 86400) return two(Math.floor(seconds / 3600), "h", Math.floor(seconds / 60) % 60, "min");
  return two(Math.floor(seconds / 86400), "d", Math.floor(seconds / 3600) % 24, "h");
}

/** The larger unit alone, for tables: 5 min, 6 h. */
export const age = (ms) => (ms === null || ms === undefined ? NONE : span(ms).split(" ").slice(0, 2).join(" "));

export function ago(at, now) {
  if (at === null || at === undefined) return NONE;
  const passed = now - at;
  if (Math.abs(passed) < 1000) return "now";
  return passed > 0 ? `${age(passed)} ago` : `in ${age(-passed)}`;
}

/** A time as the server writes it (ISO 8601, or microseconds), in milliseconds with a fraction. */
export function instant(value) {
  if (value === null || value === undefined || value === "") return null;
  return typeof value === "number" ? value / 1000 : Date.parse(value) + Number(/\.\d{3}(\d{1,3})/.exec(value)?.[1].padEnd(3, "0") ?? 0) / 1000;
}

const pad = (value, size = 2) => String(value).padStart(size, "0");

/** The exact time, in the viewer's zone or in UTC, always with the zone's name. */
export function exact(at, isUtc) {
  if (at === null || at === undefined) return NONE;
  const date = new Date(at);
  const of = (name) => date[`get${isUtc ? "UTC" : ""}${name}`]();
  const zone = -date.getTimezoneOffset();
  const name = isUtc || !zone ? "UTC" : `UTC${zone < 0 ? "-" : "+"}${Math.floor(Math.abs(zone) / 60)}${zone % 60 ? `:${pad(Math.abs(zone) % 60)}` : ""}`;
  return `${of("FullYear")}-${pad(of("Month") + 1)}-${pad(of("Date"))} ${pad(of("Hours"))}:${pad(of("Minutes"))}:${pad(of("Seconds"))}.${pad(date.getMilliseconds(), 3)} ${name}`;
}

/** The time of day: 14:02:31, with milliseconds if asked. */
export const clock = (at, isUtc, withMillis = false) => (at === null || at === undefined ? NONE : exact(at, isUtc).slice(11, withMillis ? 23 : 19));

/** An id, cut in the middle: its beginning is the time and its end the offset, and both tell ids apart. */
export const middle = (text, size = 16) => (text.length <= size ? text : `${text.slice(0, Math.ceil(size / 2) - 1)}…${text.slice(text.length - Math.floor(size / 2))}`);

/** The words of an identifier: max_retries_exceeded → max retries exceeded. */
export const words = (text) => String(text ?? "").replaceAll("_", " ");

/**
 * JSON with line breaks, made from its text. It is never parsed and printed again: that would round 64-bit numbers,
 * reorder keys and drop doubles. Returns null if the text is not JSON.
 */
export function indentJson(text) {
  try { JSON.parse(text); } catch { return null; }
  let out = "", depth = 0;
  for (let at = 0; at < text.length; at += 1) {
    const char = text[at];
    if (char === '"') {
      const start = at;
      for (at += 1; text[at] !== '"'; at += 1) if (text[at] === "\\") at += 1;
      out += text.slice(start, at + 1);
    } else if (char === "{" || char === "[") {
      const close = /^\s*[}\]]/.exec(text.slice(at + 1, at + 64));
      if (close) { out += char + close[0].trim(); at += close[0].length; } else { depth += 1; out += `${char}\n${"  ".repeat(depth)}`; }
    } else if (char === "}" || char === "]") { depth -= 1; out += `\n${"  ".repeat(depth)}${char}`; }
    else if (char === ",") out += `,\n${"  ".repeat(depth)}`;
    else if (char === ":") out += ": ";
    else if (!/\s/.test(char)) out += char;
  }
  return out;
}

/** Bytes as a hexadecimal dump, 16 on a line. */
export function hexDump(data) {
  const lines = [];
  for (let at = 0; at < data.length; at += 16) {
    const row = [...data.subarray(at, at + 16)];
    const cells = row.map((byte) => pad(byte.toString(16))).join(" ");
    lines.push(`${pad(at.toString(16), 8)}  ${cells.padEnd(47)}  ${row.map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : ".")).join("")}`);
  }
  return lines.join("\n");
}

export const fromBase64 = (text) => Uint8Array.from(atob(text), (char) => char.charCodeAt(0));

/** Text in quotes for a POSIX shell, so that a command can be copied with any name in it. */
export const quote = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${String(text).replaceAll("'", "'\\''")}'`);

/** Characters that could hide or reorder what is shown become visible escapes; line breaks and tabs stay. */
export const visible = (text) =>
  text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g, (char) => `\\u${pad(char.charCodeAt(0).toString(16), 4)}`);

/** Where to begin to browse: digits are an offset, an id opens its message, the rest is a time of this browser's zone. */
export function jump(text) {
  if (!text) return {};
  if (/^\d{1,15}$/.test(text)) return { direction: "newer", offset: text };
  const at = Date.parse(text);
  return Number.isNaN(at) ? null : { direction: "newer", time: new Date(at).toISOString() };
}
