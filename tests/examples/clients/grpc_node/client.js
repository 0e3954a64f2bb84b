'use strict';

// rocketmq-client-nodejs, which speaks gRPC, as a program: it prints a line of tab-separated fields
// for each message.
//
// number, queue, offset, SHA-256 of the body and the property "padding", tags, keys, the property
// "shape".

const crypto = require('crypto');
const { ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer } =
  require('rocketmq-client-nodejs');

const [ , , mode, endpoints, topic, ...rest ] = process.argv;
const quiet = { info() {}, warn() {}, debug() {}, error: console.error };
const options = { endpoints, namespace: '', logger: quiet, requestTimeout: 10000 };

const SECONDS = 120;
const TOGETHER = 50;
const GROUPS = 3; // of messages that keep their order
const isDelayed = number => number % 97 === 13;

function digest(body, padding) {
  return crypto.createHash('sha256').update(body).update(padding || '').digest('hex');
}

function made(number, wanted, delays) {
  const shapes = [ 'plain', 'large', 'random', 'unicode', 'untagged', 'tiny', 'long' ];
  const shape = wanted || (delays && isDelayed(number) ? 'delayed' : shapes[number % shapes.length]);
  let body = Buffer.from(`order ${number}`);
  if (shape === 'large') body = Buffer.from(`body ${number} `.repeat(9000));
  if (shape === 'random') body = crypto.randomBytes(20000);
  if (shape === 'tiny') body = Buffer.from([ number % 256 ]);
  if (shape === 'unicode') body = Buffer.from(`заказ № ${number} 订单 ✓ 𝄞`);
  const properties = new Map([ [ 'number', String(number) ],
    [ 'shape', shape === 'unicode' ? 'юникод 𝄞' : shape ] ]);
  if (shape === 'long') properties.set('padding', 'x'.repeat(9000));
  const message = { topic, body, keys: [ `key-${number}` ], properties };
  if (shape !== 'untagged') message.tag = number % 2 ? 'odd' : 'even';
  if (shape === 'delayed') message.deliveryTimestamp = new Date(Date.now() + 2000);
  if (shape === 'ordered') message.messageGroup = `group-${number % GROUPS}`;
  return message;
}

function line(message, queue, offset) {
  const properties = message.properties;
  return [ properties.get('number'), queue, offset, digest(message.body, properties.get('padding')),
    message.tag || 'null', message.keys.join(' '), properties.get('shape') ].join('\t');
}

// Send each message until it is acknowledged, then print its line at once.
async function send(first, count, shape, delays) {
  const producer = new Producer({ ...options, topics: [ topic ] });
  await producer.startup();
  const until = Date.now() + SECONDS * 1000;
  const one = async number => {
    const message = made(number, shape, delays);
    for (;;) {
      try {
        const receipt = await producer.send(message);
        const waits = message.deliveryTimestamp; // the broker says where it waits
        console.log(line(message, '?', waits ? '?' : receipt.offset));
        return;
      } catch (error) {
        if (Date.now() > until) throw error;
        await new Promise(resolve => setTimeout(resolve, 100));
      }
    }
  };
  const together = shape === 'ordered' ? 1 : TOGETHER;
  for (let number = first; number < first + count; number += together) {
    const last = Math.min(number + together, first + count);
    await Promise.all(Array.from({ length: last - number }, (_, at) => one(number + at)));
  }
  await producer.shutdown();
}

// The client does not say which queue a message was in, but the broker's handles do.
const queueOf = message => message.receiptHandle.split('.')[0];

// Print each consumed message once, as it comes.
function taking(count) {
  const places = new Set();
  let done;
  const isDone = new Promise(resolve => {
    done = resolve;
    setTimeout(resolve, SECONDS * 1000).unref();
  });
  const take = message => {
    if (message.corrupted) throw new Error(`${message.messageId} is corrupted`);
    const place = `${queueOf(message)}/${message.offset}`;
    if (!places.has(place)) console.log(line(message, queueOf(message), message.offset));
    places.add(place);
    if (places.size >= count) done();
  };
  return { places, isDone, take, end: done };
}

async function push(group, count, tags, fails) {
  const { isDone, take, end } = taking(count);
  let attempts = 0;
  const consume = async message => {
    if (!fails) {
      take(message);
      return ConsumeResult.SUCCESS;
    }
    console.log(`${message.properties.get('number')}\t${message.deliveryAttempt}`);
    attempts += 1;
    if (attempts >= count) setTimeout(end, 3000); // it is buried when the group asks for more
    return ConsumeResult.FAILURE;
  };
  const consumer = new PushConsumer({ ...options, consumerGroup: group,
    subscriptions: new Map([ [ topic, new FilterExpression(tags) ] ]), messageListener: { consume } });
  await consumer.startup();
  await isDone;
  await new Promise(resolve => setTimeout(resolve, 1000)); // it acknowledges what has returned
  await Promise.race([ consumer.shutdown(), new Promise(resolve => setTimeout(resolve, 5000)) ]);
}

async function simple(group, count, tags) {
  const { places, take } = taking(count);
  const consumer = new SimpleConsumer({ ...options, consumerGroup: group, awaitDuration: 5000,
    subscriptions: new Map([ [ topic, tags ] ]) });
  await consumer.startup();
  const until = Date.now() + SECONDS * 1000;
  while (places.size < count && Date.now() < until) {
    const messages = await consumer.receive(32, 60000);
    messages.forEach(take);
    await Promise.all(messages.map(message => consumer.ack(message)));
  }
  await consumer.shutdown();
}

async function main() {
  if (mode === 'produce') return send(0, Number(rest[0]), rest[1] || '', false);
  if (mode === 'send') return send(Number(rest[0]), Number(rest[1]), '', true);
  const [ group, count, tags = '*' ] = rest;
  if (mode === 'simple') return simple(group, Number(count), tags);
  return push(group, Number(count), tags, mode === 'fail');
}

// Flush the output first, as an exit does not wait for a pipe.
main().then(() => process.stdout.write('', () => process.exit(0)), error => {
  console.error(error);
  process.exit(1);
});
