// What users of Google's Node client do, against the server that PUBSUB_EMULATOR_HOST names.
// Each scenario makes topics of its own, so all run at once; each prints one line of JSON: {"scenario", "error"}, error null when it went well.
'use strict';

const assert = require('node:assert/strict');
const { randomUUID } = require('node:crypto');
const { PubSub, Schema, SchemaTypes, Encodings, AckResponses } = require('@google-cloud/pubsub');

const PATIENCE = 60_000;
const pubsub = new PubSub({ projectId: 'node-project' });

const unique = kind => `${kind}-${randomUUID()}`;
const text = message => message.data.toString();

async function pair(options = {}, topicOptions = {}) {
  const [topic] = await pubsub.createTopic({ name: unique('topic'), ...topicOptions });
  const [subscription] = await topic.createSubscription(unique('subscription'), options);
  return { topic, subscription };
}

// Calls `react` for each message and resolves with what `done` was called with; the subscription is closed then.
async function listen(subscription, react) {
  let timer;
  try {
    return await new Promise((resolve, reject) => {
      timer = setTimeout(() => reject(new Error(`nothing after ${PATIENCE} ms`)), PATIENCE);
      subscription.on('error', reject);
      subscription.on('message', message => {
        Promise.resolve(react(message, resolve)).catch(reject);
      });
    });
  } finally {
    clearTimeout(timer);
    subscription.removeAllListeners('error');
    subscription.on('error', () => {});
    await subscription.close();
  }
}

// `count` different messages, each acked. One may be delivered again, when its ack comes after the end of an earlier stream.
function receive(subscription, count) {
  const found = new Map();
  return listen(subscription, (message, done) => {
    message.ack();
    if (found.size < count) found.set(message.id, message);
    if (found.size === count) done([...found.values()]);
  });
}

const numbers = count => Array.from({ length: count }, (_, number) => number);

const scenarios = {
  async resources() {
    const { topic, subscription } = await pair({ ackDeadlineSeconds: 33, labels: { team: 'blue' } });
    assert.deepEqual(await topic.exists(), [true]);
    assert.deepEqual(await pubsub.topic(unique('nobody')).exists(), [false]);
    await topic.setMetadata({ labels: { team: 'red' } });
    assert.deepEqual((await topic.getMetadata())[0].labels, { team: 'red' });
    const [shown] = await subscription.getMetadata();
    assert.equal(shown.ackDeadlineSeconds, 33);
    assert.deepEqual(shown.labels, { team: 'blue' });
    await subscription.setMetadata({ ackDeadlineSeconds: 44, retryPolicy: { minimumBackoff: { seconds: 1 } } });
    const [changed] = await subscription.getMetadata();
    assert.equal(changed.ackDeadlineSeconds, 44);
    assert.equal(Number(changed.retryPolicy.minimumBackoff.seconds), 1);
    const [attached] = await topic.getSubscriptions();
    assert.deepEqual(attached.map(one => one.name), [subscription.name]);
    await assert.rejects(pubsub.createTopic(topic.name), { code: 6 });
    await assert.rejects(pubsub.createTopic('!'), { code: 3 });
    await subscription.delete();
    await topic.delete();
    assert.deepEqual(await topic.exists(), [false]);
  },

  async paging() {
    const [topic] = await pubsub.createTopic(unique('topic'));
    await Promise.all(numbers(5).map(() => topic.createSubscription(unique('subscription'))));
    const [first, next] = await topic.getSubscriptions({ pageSize: 2, autoPaginate: false });
    assert.equal(first.length, 2);
    assert.ok(next.pageToken);
    assert.equal((await topic.getSubscriptions({ pageSize: 2, autoPaginate: true }))[0].length, 5);
  },

  async publish_and_ack() {
    const { topic, subscription } = await pair();
    const received = receive(subscription, 200);
    const ids = await Promise.all(
      numbers(200).map(number => topic.publishMessage({ data: Buffer.from(`${number}`), attributes: { origin: 'node' } }))
    );
    const found = await received;
    assert.deepEqual(new Set(found.map(message => message.id)), new Set(ids));
    assert.deepEqual(found.map(message => Number(text(message))).sort((a, b) => a - b), numbers(200));
    assert.equal(found[0].attributes.origin, 'node');
    assert.ok(Math.abs(found[0].publishTime.getTime() - Date.now()) < 60_000);
  },

  async json_and_large_messages() {
    const { topic, subscription } = await pair();
    await topic.publishMessage({ json: { a: [1, 'ü'] } });
    const [message] = await receive(subscription, 1);
    assert.deepEqual(JSON.parse(text(message)), { a: [1, 'ü'] });
    const large = await pair();
    for (const byte of [1, 2, 3]) await large.topic.publishMessage({ data: Buffer.alloc(3_000_000, byte) });
    const found = await receive(large.subscription, 3);
    assert.deepEqual(found.map(one => one.data.length), [3_000_000, 3_000_000, 3_000_000]);
  },

  async nack() {
    const { topic, subscription } = await pair({ ackDeadlineSeconds: 600 });
    await topic.publishMessage({ data: Buffer.from('again') });
    const started = Date.now();
    let calls = 0;
    await listen(subscription, (message, done) => {
      calls += 1;
      if (calls < 3) return message.nack();
      message.ack();
      return done();
    });
    assert.ok(Date.now() - started < PATIENCE);
  },

  async ordering() {
    const { topic, subscription } = await pair({ enableMessageOrdering: true });
    topic.setPublishOptions({ messageOrdering: true });
    await Promise.all(
      numbers(60).map(number => topic.publishMessage({ data: Buffer.from(`${number}`), orderingKey: `key${number % 3}` }))
    );
    const found = await receive(subscription, 60);
    for (const key of [0, 1, 2]) {
      const mine = found.filter(message => message.orderingKey === `key${key}`).map(message => Number(text(message)));
      assert.deepEqual(mine, numbers(60).filter(number => number % 3 === key));
    }
  },

  async exactly_once() {
    const { topic, subscription } = await pair({ enableExactlyOnceDelivery: true });
    await Promise.all(numbers(20).map(number => topic.publishMessage({ data: Buffer.from(`${number}`) })));
    const seen = new Set();
    await listen(subscription, async (message, done) => {
      assert.equal(await message.ackWithResponse(), AckResponses.Success);
      assert.ok(!seen.has(message.id));
      seen.add(message.id);
      if (seen.size === 20) done();
    });
  },

  async exactly_once_refuses_a_stale_ack() {
    const { topic, subscription } = await pair({ enableExactlyOnceDelivery: true });
    await topic.publishMessage({ data: Buffer.from('once') });
    await listen(subscription, async (message, done) => {
      // Somebody else gives the delivery back first, with the same ack id.
      const client = await pubsub.getClientAsync_({ client: 'SubscriberClient' });
      await client.modifyAckDeadline({ subscription: subscription.name, ackIds: [message.ackId], ackDeadlineSeconds: 0 });
      await assert.rejects(message.ackWithResponse(), { errorCode: AckResponses.Invalid });
      done();
    });
  },

  async flow_control() {
    const { topic, subscription } = await pair();
    await Promise.all(numbers(40).map(() => topic.publishMessage({ data: Buffer.from('x') })));
    subscription.setOptions({ flowControl: { maxMessages: 5 }, streamingOptions: { maxStreams: 1 } });
    let held = 0;
    let most = 0;
    let count = 0;
    await listen(subscription, async (message, done) => {
      held += 1;
      most = Math.max(most, held);
      await new Promise(resolve => setImmediate(resolve));
      held -= 1;
      message.ack();
      count += 1;
      if (count === 40) done();
    });
    assert.ok(most <= 5, `held ${most}`);
  },

  async filter() {
    const { topic, subscription } = await pair({ filter: 'attributes.kind = "yes"' });
    await Promise.all(
      ['no', 'yes', 'no', 'yes'].map((kind, number) =>
        topic.publishMessage({ data: Buffer.from(`${number}`), attributes: { kind } })
      )
    );
    assert.deepEqual((await receive(subscription, 2)).map(text).sort(), ['1', '3']);
  },

  async dead_letters() {
    const { topic: graves, subscription: graveyard } = await pair();
    const { topic, subscription } = await pair({
      deadLetterPolicy: { deadLetterTopic: graves.name, maxDeliveryAttempts: 5 },
    });
    await topic.publishMessage({ data: Buffer.from('poison') });
    const attempts = [];
    subscription.on('error', () => {});
    subscription.on('message', message => {
      attempts.push(message.deliveryAttempt);
      message.nack();
    });
    const [letter] = await receive(graveyard, 1);
    await subscription.close();
    assert.deepEqual(attempts, [1, 2, 3, 4, 5]);
    assert.equal(text(letter), 'poison');
    assert.equal(letter.attributes.CloudPubSubDeadLetterSourceDeliveryCount, '5');
    assert.equal(letter.attributes.CloudPubSubDeadLetterSourceSubscription, subscription.name.split('/').pop());
  },

  async schema() {
    const definition = { type: 'record', name: 'Point', fields: [{ name: 'x', type: 'int' }] };
    const schema = await pubsub.createSchema(unique('schema'), SchemaTypes.Avro, JSON.stringify(definition));
    const name = await schema.getName();
    const { topic, subscription } = await pair({}, { schemaSettings: { schema: name, encoding: Encodings.Json } });
    await topic.publishMessage({ data: Buffer.from('{"x": 1}') });
    await assert.rejects(topic.publishMessage({ data: Buffer.from('{"x": "one"}') }), { code: 3 });
    const [message] = await receive(subscription, 1);
    assert.equal(Schema.metadataFromMessage(message.attributes).encoding, Encodings.Json);
    assert.equal(message.attributes.googclient_schemaname, name);
    await pubsub.validateSchema({ type: SchemaTypes.Avro, definition: JSON.stringify(definition) });
    const listed = [];
    for await (const one of pubsub.listSchemas()) listed.push(one.name);
    assert.ok(listed.includes(name));
    await schema.delete();
  },

  async snapshot_and_seek() {
    const { topic, subscription } = await pair();
    await topic.publishMessage({ data: Buffer.from('back') });
    const [snapshot] = await subscription.createSnapshot(unique('snapshot'));
    await receive(subscription, 1);
    const again = pubsub.subscription(subscription.name);
    await again.seek(snapshot.name);
    assert.deepEqual((await receive(again, 1)).map(text), ['back']);
    await snapshot.delete();
  },

  async detach() {
    const { subscription } = await pair();
    assert.equal([await subscription.detached()].flat()[0], false);
    await pubsub.detachSubscription(subscription.name);
    assert.equal([await subscription.detached()].flat()[0], true);
  },

  async deleting_the_subscription_is_an_error_of_the_listener() {
    const { topic, subscription } = await pair();
    await topic.publishMessage({ data: Buffer.from('first') });
    await assert.rejects(
      listen(subscription, async message => {
        message.ack();
        await pubsub.subscription(subscription.name).delete();
      }),
      { code: 5 }
    );
  },

  async iam() {
    const { topic } = await pair();
    await topic.iam.setPolicy({ bindings: [{ role: 'roles/pubsub.viewer', members: ['user:a@example.com'] }] });
    assert.equal((await topic.iam.getPolicy())[0].bindings[0].role, 'roles/pubsub.viewer');
    const [granted] = await topic.iam.testPermissions(['pubsub.topics.publish']);
    assert.deepEqual(granted, { 'pubsub.topics.publish': true });
  },
};

async function tell(scenario) {
  let error = null;
  try {
    await scenarios[scenario]();
  } catch (problem) {
    error = problem.stack || String(problem);
  }
  console.log(JSON.stringify({ scenario, error }));
}

const wanted = process.argv.slice(2);
Promise.all((wanted.length ? wanted : Object.keys(scenarios)).map(tell))
  .then(() => pubsub.close())
  .then(() => process.exit(0));
