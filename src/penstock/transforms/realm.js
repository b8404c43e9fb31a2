// The room in which a transform runs. Evaluated once in each context, before any code of a user; its value is a function that
// takes `make`, which evaluates the user's code afresh and returns the user's function, and gives `run`.
//
// `run(text)` takes JSON `[message, metadata]` and answers in text. Its first letter says what became of the message (M changed,
// D dropped, F failed, O out of memory), its second whether this context may serve again (" ") or must be thrown away ("!").
// `run(null)` only looks whether `make` gives a function that can be called: D if so, N if not.
//
// Nothing a message leaves behind reaches the next one: top-level variables are made anew by `make`, built-in objects are frozen,
// and globals made on the way are swept out.
(function () {
  "use strict";
  const { parse, stringify } = JSON;
  const { defineProperty, freeze, getOwnPropertyDescriptor, getPrototypeOf, keys } = Object;
  const { apply, deleteProperty, ownKeys } = Reflect;
  const tag = Object.prototype.toString;

  // What is reachable is frozen below; these are the roots that the global object does not lead to.
  const found = [
    globalThis, function* () {}, async function () {}, async function* () {}, (function* () {})(), (async function* () {})(),
    [].values(), [].values().map((x) => x), ""[Symbol.iterator](), "".matchAll(/x/g), new Map().entries(), new Set().entries(),
    Iterator.from({ next() {} }), Iterator.concat([]), Iterator.zip?.([]), Iterator.zipKeyed?.({}),
  ];

  // A frozen property would also forbid `this.name = "…"` in an Error of the user's own: below, such a write makes an own property.
  function letHeirsOverride(prototype) {
    for (const key of ownKeys(prototype)) {
      const { value, configurable, enumerable } = getOwnPropertyDescriptor(prototype, key);
      if (!configurable || value === undefined) continue;
      found.push(value); // from now on only the getter leads to it
      defineProperty(prototype, key, {
        get() {
          return value;
        },
        set(given) {
          if (this === prototype) throw new TypeError("built-in objects are frozen");
          defineProperty(this, key, { value: given, writable: true, enumerable: true, configurable: true });
        },
        enumerable,
      });
    }
  }

  const errors = [Error, EvalError, RangeError, ReferenceError, SyntaxError, TypeError, URIError, InternalError, AggregateError];
  [Object, ...errors].forEach((type) => letHeirsOverride(type.prototype));

  const seen = new Set();
  for (const value of found) {
    if ((typeof value !== "object" && typeof value !== "function") || value === null || seen.has(value)) continue;
    seen.add(value);
    found.push(getPrototypeOf(value));
    for (const key of ownKeys(value)) {
      const { value: inner, get, set } = getOwnPropertyDescriptor(value, key);
      found.push(inner, get, set);
    }
    if (value !== globalThis) freeze(value);
  }
  // The global object itself stays open: sloppy code that forgets `let` must work here as it does elsewhere.
  const builtin = new Set(ownKeys(globalThis));
  for (const key of builtin) {
    const fixed = getOwnPropertyDescriptor(globalThis, key);
    defineProperty(globalThis, key, "value" in fixed ? { writable: false, configurable: false } : { configurable: false });
  }

  function swept() {
    let clean = Object.isExtensible(globalThis);
    const now = ownKeys(globalThis);
    if (now.length !== builtin.size) {
      for (const key of now) if (!builtin.has(key)) clean = deleteProperty(globalThis, key) && clean;
    }
    return clean ? " " : "!";
  }

  const kind = (value) => (value === null ? "null" : Array.isArray(value) ? "an array" : `a value of type ${typeof value}`);

  function judged(result) {
    if (result === null) return ["D", ""];
    if (result === undefined) return ["F", "returned nothing, expected a message, or null to drop it"];
    if (result instanceof Promise) return ["F", "returned a promise; it must not be async"];
    if (typeof result !== "object") return ["F", `returned ${kind(result)}, expected a message, or null to drop it`];
    const { data, attributes = {} } = result;
    if (typeof data !== "string") return ["F", `returned data that is ${kind(data)}, expected a string`];
    if (typeof attributes !== "object" || attributes === null || Array.isArray(attributes))
      return ["F", `returned attributes that are ${kind(attributes)}, expected an object of strings`];
    const copy = { __proto__: null };
    for (const key of keys(attributes)) {
      const value = attributes[key];
      if (typeof value !== "string") return ["F", `returned the attribute ${stringify(key.slice(0, 100))} with ${kind(value)}, expected a string`];
      copy[key] = value;
    }
    return ["M", stringify({ data, attributes: copy })];
  }

  function described(error) {
    try {
      if (error instanceof InternalError && error.message === "out of memory") return ["O", ""];
      if (!(error instanceof Error)) return ["F", `threw ${String(error).slice(0, 500)}`];
      const line = /<input>:(\d+)/.exec(String(error.stack));
      const text = `${error.name}: ${error.message}`.slice(0, 500);
      return ["F", `threw ${text}${line ? ` (line ${line[1]})` : ""}`];
    } catch {
      return ["F", "threw something that cannot be shown"];
    }
  }

  function looked(made) {
    const type = apply(tag, made, []);
    if (type === "[object Function]") return ["D", ""];
    return ["N", made === undefined ? "not there" : `of the kind ${type.slice(8, -1)}`];
  }

  return (make) => (text) => {
    let answer;
    try {
      if (text === null) answer = looked(make());
      else {
        const [message, metadata] = parse(text);
        answer = judged(make()(message, freeze(metadata)));
      }
    } catch (error) {
      answer = described(error);
    }
    // Joined, not added: a long sum is a rope inside the engine, which its Python binding refuses ("Unknown quickjs tag").
    return [answer[0], swept(), answer[1].toWellFormed()].join("");
  };
})();
