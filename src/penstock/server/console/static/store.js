// The state of the page, by key. A change marks its key; at the next frame each listener runs once, however many changes there were.

export class Store {
  #values = new Map();
  #listeners = new Map();
  #dirty = new Set();
  #schedule;

  /** `schedule` runs a function at the next frame. */
  constructor(schedule = (run) => requestAnimationFrame(run)) { this.#schedule = schedule; }

  get(key) { return this.#values.get(key); }

  set(key, value) {
    this.#values.set(key, value);
    if (!this.#dirty.size) this.#schedule(() => this.#flush());
    this.#dirty.add(key);
  }

  /** Call `listener` with the value now, if there is one, and after every change. Returns what ends it. */
  watch(key, listener) {
    const all = this.#listeners.get(key) ?? this.#listeners.set(key, new Set()).get(key);
    all.add(listener);
    if (this.#values.has(key)) listener(this.#values.get(key));
    return () => all.delete(listener);
  }

  #flush() {
    const dirty = [...this.#dirty];
    this.#dirty.clear();
    for (const key of dirty) for (const listener of [...(this.#listeners.get(key) ?? [])]) listener(this.#values.get(key));
  }
}
