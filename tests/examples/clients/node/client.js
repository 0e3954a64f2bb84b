'use strict';

// ali-ons as a program: it prints a line of tab-separated fields for each message.
//
// number, queue, offset, SHA-256 of the body and the property "padding", tags, keys, the property
// "shape".

const crypto = require('crypto');
const httpclient = require('urllib');
const { Consumer, Message, Producer } = require('ali-ons');

const [, , mode, nameSrv, topic, ...rest] = process.argv;
const quiet = { info() {}, warn() {}, debug() {}, error: console.error };
const options = { httpclient, nameSrv, logger: quiet, vipChannelEnabled: false };

const SECONDS = 120;
const isDelayed = number => number % 97 === 13;

function digest(message) {
  const hash = crypto.createHash('sha256').update(message.body);
  return hash.update(message.properties.padding || '').digest('hex');
}

function line(message, queue, offset) {
  return [ message.properties.number, queue, offset, digest(message), message.tags || 'null',
    message.keys, message.properties.shape ].join('\t');
}

function message(number, isOfStory = false) {
  const shapes = [ 'plain', 'large', 'random', 'unicode', 'untagged', 'tiny', 'long' ];
  const shape = isOfStory && isDelayed(number) ? 'delayed' : shapes[number % shapes.length];
  let body = `order ${number}`;
  if (shape === 'large') body = `body ${number} `.repeat(9000);
  if (shape === 'tiny') body = Buffer.from([ number % 256 ]);
  if (shape === 'unicode') body = `заказ № ${number} 订单 ✓ 𝄞`;
  const found = new Message(topic, shape === 'untagged' ? '' : number % 2 ? 'odd' : 'even',
    shape === 'random' ? crypto.randomBytes(20000) : body);
  found.keys = [ `key-${number}` ];
  found.properties.number = String(number);
  found.properties.shape = shape === 'unicode' ? 'юникод 𝄞' : shape;
  if (shape === 'long') found.properties.padding = 'x'.repeat(9000);
  if (shape === 'delayed') found.delayTimeLevel = 1;
  return found;
}

async function produce(count) {
  const producer = new Producer({ ...options, producerGroup: 'node_producers' });
  await producer.ready();
  for (let number = 0; number < count; number += 50) {
    const some = Array.from({ length: Math.min(50, count - number) }, (_, at) => message(number + at));
    const sums = some.map(digest);
    const results = await Promise.all(some.map(each => producer.send(each)));
    results.forEach((result, at) => {
      const queue = result.messageQueue;
      const told = line(some[at], queue.queueId, result.queueOffset).split('\t');
      told[3] = sums[at]; // the client compresses large bodies where they are
      console.log(told.join('\t'));
    });
  }
  await producer.close();
}

// Send each message until it is acknowledged, then print its line at once; fifty at a time.
async function send(first, count) {
  // The client's own retry would send a body that it has already compressed.
  const producer = new Producer({ ...options, producerGroup: 'node_producers',
    retryTimesWhenSendFailed: 0 });
  await producer.ready();
  const until = Date.now() + SECONDS * 1000;
  const one = async number => {
    for (;;) {
      const sent = message(number, true);
      const sum = digest(sent); // the client compresses large bodies where they are
      try {
        const result = await producer.send(sent);
        const told = line(sent, result.messageQueue.queueId, result.queueOffset).split('\t');
        told[3] = sum;
        if (isDelayed(number)) told[1] = told[2] = '?'; // the broker says where it waits
        console.log(told.join('\t'));
        return;
      } catch (error) {
        if (Date.now() > until) throw error;
        await new Promise(resolve => setTimeout(resolve, 100));
      }
    }
  };
  for (let number = first; number < first + count; number += 50) {
    const some = Array.from({ length: Math.min(50, first + count - number) }, (_, at) => number + at);
    await Promise.all(some.map(one));
  }
  await producer.close();
}

// A new group begins at `since`, if given: a second as yyyyMMddHHmmss.
async function consume(group, count, tags, since) {
  const from = since ?
    { consumeFromWhere: 'CONSUME_FROM_TIMESTAMP', consumeTimestamp: since } :
    { consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET' };
  const consumer = new Consumer({ ...options, consumerGroup: group, ...from });
  await consumer.ready();
  const found = new Map();
  await new Promise(resolve => {
    setTimeout(resolve, SECONDS * 1000).unref();
    consumer.subscribe(topic, tags, async each => {
      found.set(`${each.queueId}/${each.queueOffset}`, line(each, each.queueId, each.queueOffset));
      if (found.size >= count) setTimeout(resolve, 500); // it counts when this has returned
    });
  });
  await consumer.close(); // which tells the broker how far it is
  for (const each of found.values()) console.log(each);
}

const work = mode === 'produce' ? produce(Number(rest[0])) :
  mode === 'send' ? send(Number(rest[0]), Number(rest[1])) :
    consume(rest[0], Number(rest[1]), rest[2], rest[3]);
// Flush the output first, as an exit does not wait for a pipe.
work.then(() => process.stdout.write('', () => process.exit(0)), error => {
  console.error(error);
  process.exit(1);
});
