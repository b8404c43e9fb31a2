/** A place in the history of a topic: pass it as `since` to continue after it. */
export interface Position {
  epoch: string;
  offset: number;
}

/** Any WebSocket with the interface of browsers: the global one, or that of the package ws. */
export type WebSocketClass = new (url: string) => {
  readonly readyState: number;
  onopen: ((event: any) => any) | null;
  onmessage: ((event: any) => any) | null;
  onerror: ((event: any) => any) | null;
  onclose: ((event: any) => any) | null;
  send(text: string): void;
  close(): void;
};

export type HubState = "new" | "connecting" | "connected" | "waiting" | "closed" | "failed";

/** A change of the connection. */
export interface StateChange {
  state: HubState;
  /** Why there is no connection; empty if there is nothing to report. */
  problem: string;
  /** `waiting`: milliseconds until the next attempt. */
  retryIn: number;
  /** `failed` and `closed`: what further calls reject with. */
  error: HubError | null;
}

export interface HubOptions {
  /** Who this client is, such as `@(browser/page-1)`. Without it: what the token says, or a random name. */
  address?: string;
  /** A token, or a function that returns one: it is called at each connection, and when a token has expired. */
  token?: string | (() => string | Promise<string>);
  /** Words that others may look for; `["client"]` if not given. */
  capabilities?: string[];
  /** What others may see of this actor. */
  metadata?: Record<string, unknown>;
  /** Milliseconds that the registration lasts without renewal, 1,000 to 3,600,000; 300,000 if not given. */
  ttl?: number;
  /** Milliseconds for each call, waiting for a connection included; 10,000 if not given. */
  timeout?: number;
  /** Whether `connect()` keeps trying if the first attempt finds no server. */
  retryConnect?: boolean;
  /** Milliseconds between attempts to reconnect: 1,000, doubled up to 30,000, if not given. The first attempt is made at once. */
  backoff?: { minimum?: number; maximum?: number };
  /** Needed where there is no global one, as in Node.js 20. */
  WebSocket?: WebSocketClass;
  /** How messages are read; `JSON.parse` if not given. */
  parse?: (text: string) => any;
  onState?: (change: StateChange) => void;
  /** Messages that others send to this actor, and broadcasts. */
  onDirect?: (message: HubMessage) => void;
}

/** Messages of a subscription may be missing after `since`, or since the last connection. */
export interface Gap {
  topic: string;
  since: Position | null;
}

/** Who subscribes: a `list` of all, or who joins and leaves. */
export interface PresenceEvent {
  topic: string;
  event: "list" | "join" | "leave";
  actors: string[];
}

export interface SubscribeOptions<T = any> {
  /** Whether messages wait while this address is away, and are delivered until they are acknowledged. */
  durable?: boolean;
  /** Whether to keep `present` up to date; `onPresence` implies it. */
  presence?: boolean;
  /** Start with what came after this position. */
  since?: Position | null;
  /** How many messages may wait here before the hub is asked to hold back; 1,000 if not given. */
  maxWaiting?: number;
  /** Called for one message after another, in order; the next one waits for a returned promise. Without it, iterate. */
  onMessage?: (message: HubMessage<T>) => unknown;
  /** Called where messages may be missing: load again what you show. */
  onGap?: (gap: Gap) => void;
  onPresence?: (event: PresenceEvent) => void;
  /** With `onMessage`: called when the subscription has ended for another reason than `unsubscribe()` or `close()`. */
  onError?: (error: HubError) => void;
}

export interface Published {
  topic: string;
  subscriberCount: number;
  delivered: true;
  timestamp: number;
  messageId?: string;
  position?: Position;
}

export interface TopicList {
  topics: { topic: string; subscriberCount: number }[];
  total: number;
  hasMore: boolean;
}

export interface TopicInfo {
  topic: string;
  /** Whom a message to it would reach. */
  subscriberCount: number;
  /** How many subscribe by that very name. */
  exactCount: number;
  /** Whether what is published is kept. */
  history: boolean;
  position?: Position;
  /** The topic of the broker behind it. */
  boundTo?: string;
}

export interface ActorList {
  actors: { actorAddress: string; capabilities: string[]; metadata: Record<string, unknown>; registeredAt: number }[];
  count: number;
  hasMore: boolean;
  totalMatches: number;
}

/**
 * Why a call failed, or why there is no connection.
 *
 * `code` is one of the hub's (`unauthorized`, `rate_limited`, …) or the client's own: `invalid_argument`,
 * `failed_precondition`, `unreachable`, `connection_lost`, `timeout`, `closed`.
 */
export class HubError extends Error {
  readonly name: "HubError";
  readonly code: string;
  /** More exact than the code, as the hub's documentation lists it. */
  readonly reason: string;
  /** What to do about it; the message contains it. */
  readonly hint: string;
  /** Whether the same call may succeed later. */
  readonly retryable: boolean;
  readonly details: Record<string, unknown>;
  private constructor();
}

/** A message of a topic, or one that another actor sent to this one. */
export class HubMessage<T = any> {
  readonly type: string;
  /** The address of the actor that sent it. The hub vouches for it. */
  readonly sender: string;
  /** null of a direct message or a broadcast. */
  readonly topic: string | null;
  readonly data: T;
  readonly position: Position | null;
  readonly id: string;
  readonly sentAt: Date | null;
  /** Set if it was delivered by a durable subscription. */
  readonly ackId: string | null;
  private constructor();
  /** Tell the hub that this message of a durable subscription is done, so that it is not delivered again. */
  ack(): Promise<void>;
}

/** The messages of one topic or pattern: iterate with `for await`, or pass `onMessage`. */
export class HubSubscription<T = any> implements AsyncIterable<HubMessage<T>> {
  readonly topic: string;
  readonly durable: boolean;
  /** Whether the hub has confirmed it on the current connection. */
  readonly isSubscribed: boolean;
  /** How many messages have come and were not taken. */
  readonly waiting: number;
  /** Who subscribes to this topic, if `presence` was set. */
  readonly present: ReadonlySet<string>;
  /** Of the last message that was taken: pass it as `since` another time. */
  readonly position: Position | null;
  /** Why it has ended, if the hub refused it or the client failed. */
  readonly error: HubError | null;
  /** Resolves when the hub has confirmed it for the first time; rejects if it is refused. */
  readonly ready: Promise<void>;
  private constructor();
  /** End it for good, a durable one too. */
  unsubscribe(): Promise<void>;
  [Symbol.asyncIterator](): AsyncIterableIterator<HubMessage<T>>;
}

/** An actor at a hub. A client is used once: after `close()` or a final error, make another one. */
export class HubClient {
  /** `server`: `http://host:8085`, or the WebSocket itself. In a browser, undefined means the server of the page. */
  constructor(server?: string | URL, options?: HubOptions);
  readonly url: string;
  readonly address: string;
  readonly state: HubState;
  readonly error: HubError | null;
  /** Connect and register. Rejects if the first attempt fails, unless `retryConnect` is set. */
  connect(): Promise<void>;
  /** Try to reconnect now instead of waiting, as after the browser's event `online`. */
  reconnect(): void;
  /** Leave the hub. Iterations end after what they have received, and durable subscriptions wait for the next time. Safe twice. */
  close(): Promise<void>;
  /** Subscribe to a topic or pattern, now or as soon as there is a connection, and again on each later one. */
  subscribe<T = any>(topic: string, options?: SubscribeOptions<T>): HubSubscription<T>;
  /** End a subscription of this address for good. Messages that wait for a durable one are dropped. */
  unsubscribe(topic: string): Promise<void>;
  /** Send data, any JSON value, to all subscribers of a topic. Where the topic has a log, it is stored when this resolves. */
  publish(topic: string, data?: unknown, options?: { type?: string; ttl?: number }): Promise<Published>;
  /** Acknowledge messages of durable subscriptions. */
  ack(...messages: HubMessage[]): Promise<void>;
  /** The topics and patterns that have subscribers, by name. */
  topics(prefix?: string, options?: { limit?: number; offset?: number }): Promise<TopicList>;
  /** What the hub knows of a topic. */
  topicInfo(topic: string): Promise<TopicInfo>;
  /** The addresses of those who subscribe to a topic or pattern by that very name. */
  presence(topic: string): Promise<string[]>;
  /** Send data to one actor; HubError `unknown_actor` if that address is not registered. */
  send(to: string, data?: unknown, options?: { type?: string; ttl?: number }): Promise<void>;
  /** Send data to all actors, or to those with a capability; resolves to how many received it. */
  broadcast(data?: unknown, options?: { type?: string; capability?: string; includeSelf?: boolean }): Promise<number>;
  /** Actors whose address matches a pattern, with all of these capabilities and this metadata; all actors without arguments. */
  discover(query?: {
    pattern?: string;
    capabilities?: string[];
    metadata?: Record<string, unknown>;
    limit?: number;
    offset?: number;
  }): Promise<ActorList>;
  /** Continue with another token of the same actor, before the last one expires. A function as `token` does that by itself. */
  refreshToken(token: string): Promise<{ expiresAt: number | null }>;
}

/** Whether a pattern with `+` (one level) and a last `#` (any number of levels) covers a topic. */
export function covers(pattern: string, topic: string): boolean;

/** Milliseconds before an attempt to reconnect, the first being 1. `chance` is from 0 to 1. */
export function reconnectDelay(attempt: number, chance: number, backoff?: { minimum?: number; maximum?: number }): number;
