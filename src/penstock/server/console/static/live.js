// One WebSocket for all live data. It sends what the page shows (`watch`), and receives complete snapshots of it.

const HIDDEN_SECONDS = 10, LONGEST_SECONDS = 10;

/**
 * `on` gets what happens: state(name, detail), welcome(session), snapshot(frame), error(frame), denied(error).
 * States: connecting, live, paused, hidden, gone (`detail.retryAt`), denied.
 */
export class Live {
  #on;
  #first;
  #socket = null;
  #watch = null;
  #isWelcome = false;
  #tries = 0;
  #timer = 0;
  #env;
  state = "connecting";

  /** `first` makes the first frame: token and project. `env` has WebSocket, setTimeout, clearTimeout, now, random and url. */
  constructor(first, on, env) {
    this.#first = first;
    this.#on = on;
    this.#env = env;
  }

  open() {
    this.#env.clearTimeout(this.#timer);
    this.#drop();
    if (this.state !== "gone") this.#set("connecting");
    const socket = (this.#socket = new this.#env.WebSocket(this.#env.url));
    socket.onopen = () => socket.send(JSON.stringify(this.#first()));
    socket.onmessage = ({ data }) => { if (socket === this.#socket) this.#got(JSON.parse(data)); };
    socket.onclose = ({ code }) => { if (socket === this.#socket) this.#lost(code); };
  }

  /** Show this view from now on: {view, key, …}; null: nothing. */
  watch(view) {
    this.#watch = view;
    if (this.#isWelcome && this.state === "live") this.#send({ watch: view });
  }

  pause() {
    if (this.state !== "live") return;
    this.#send({ watch: null });
    this.#set("paused");
  }

  resume() {
    if (this.#isWelcome) {
      this.#set("live");
      this.#send({ watch: this.#watch });
    } else this.open();
  }

  hide() {
    if (this.state !== "live") return;
    this.#send({ watch: null });
    this.#set("hidden");
    this.#timer = this.#env.setTimeout(() => this.#drop(), HIDDEN_SECONDS * 1000);
  }

  show() {
    if (this.state !== "hidden") return;
    this.#env.clearTimeout(this.#timer);
    this.resume();
  }

  #send(frame) { this.#socket?.send(JSON.stringify(frame)); }

  #set(name, detail) {
    this.state = name;
    this.#on.state(name, detail);
  }

  #drop() {
    const socket = this.#socket;
    this.#socket = null;
    this.#isWelcome = false;
    if (socket) socket.close();
  }

  #got(frame) {
    if (frame.type === "welcome") {
      this.#isWelcome = true;
      this.#tries = 0;
      this.#on.welcome(frame.session);
      if (this.state !== "paused") this.#set("live");
      if (this.#watch && this.state === "live") this.#send({ watch: this.#watch });
    } else if (frame.type === "snapshot") {
      // A frame of a page that was left may still arrive.
      if (this.state === "live" && frame.view === this.#watch?.view && frame.key === this.#watch?.key) this.#on.snapshot(frame);
    } else if (frame.view) this.#on.error(frame);
    else this.#refused = frame.error;
  }

  #refused = null;

  #lost(code) {
    this.#socket = null;
    this.#isWelcome = false;
    if (code === 4401 || code === 4403) {
      this.#set("denied");
      this.#on.denied(this.#refused);
      return;
    }
    const seconds = Math.min(0.5 * 2 ** this.#tries, LONGEST_SECONDS) * (0.75 + this.#env.random() / 2);
    this.#tries += 1;
    this.#set("gone", { retryAt: this.#env.now() + seconds * 1000 });
    this.#timer = this.#env.setTimeout(() => this.open(), seconds * 1000);
  }
}
