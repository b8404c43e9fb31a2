// Read by TypeScript's compiler, never run: what a program may write, and what it may not.

import { HubClient, HubError, type Gap, type HubMessage, type Position, type Published, type StateChange } from "penstock-hub";

interface Order { id: number }

const hub = new HubClient("https://example.org", {
  address: "@(browser/page-1)",
  token: async () => "token",
  WebSocket,
  backoff: { minimum: 500 },
  onState: ({ state, retryIn }: StateChange) => console.log(state === "waiting" ? retryIn : state),
});
await hub.connect();

const orders = hub.subscribe<Order>("orders/#", { since: { epoch: "a", offset: 1 }, onGap: (gap: Gap) => console.log(gap.since?.offset) });
await orders.ready;
for await (const message of orders) {
  const id: number = message.data.id;
  const position: Position | null = message.position;
  console.log(id, position);
  if (message.ackId !== null) await message.ack();
}
hub.subscribe("chat", { durable: true, onMessage: async (message: HubMessage<string>) => message.data.length });

const published: Published = await hub.publish("orders/eu", { id: 1 }, { type: "order:placed", ttl: 5_000 });
const names: string[] = (await hub.topics("orders")).topics.map(({ topic }) => topic);
const { expiresAt }: { expiresAt: number | null } = await hub.refreshToken("token");
console.log(published.position?.offset, names, expiresAt, (await hub.discover({ capabilities: ["ui"] })).totalMatches);

try {
  await hub.send("@(agent/billing)");
} catch (error) {
  if (error instanceof HubError && error.retryable) console.log(error.code, error.reason, error.hint, error.details.topic);
}

// @ts-expect-error the state is one of a few words
hub.state === "open";
// @ts-expect-error a topic is needed
hub.publish();
// @ts-expect-error there is no such option
hub.subscribe("orders", { sinse: null });
// @ts-expect-error data of an order has an id
hub.subscribe<Order>("orders", { onMessage: (message) => message.data.name });
await hub.close();
