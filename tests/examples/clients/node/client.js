'use strict';

// ali-ons as a program: it prints a line of tab-separated fields for each message.
//
// number, queue, offset, SHA-256 of the body, tags, keys, the property "shape".

const crypto = require('crypto');
const httpclient = require('urllib');
const { Consumer, Message, Producer } = require('ali-ons');

const [, , mode, nameSrv, topic, ...rest] = process.argv;
const quiet = { info() {}, warn() {}, debug() {}, error: console.error };
const options = { httpclient, nameSrv, logger: quiet, vipChannelEnabled: false };

const sha = body => crypto.createHash('sha256').update(body).digest('hex');

function line(message, queue, offset) {
  return [ message.properties.number, queue, offset, sha(message.body), message.tags || 'null',
    message.keys, message.properties.shape ].join('\t');
}

function message(number) {
  const shapes = [ 'plain', 'large', 'random', 'unicode', 'untagged' ];
  const shape = shapes[number % shapes.length];
  let body = `order ${number}`;
  if (shape === 'large') body = `body ${number} `.repeat(9000);
  if (shape === 'unicode') body = `заказ № ${number} 订单 ✓ 𝄞`;
  const found = new Message(topic, shape === 'untagged' ? '' : number % 2 ? 'odd' : 'even',
    shape === 'random' ? crypto.randomBytes(20000) : body);
  found.keys = [ `key-${number}` ];
  found.properties.number = String(number);
  found.properties.shape = shape === 'unicode' ? 'юникод 𝄞' : shape;
  return found;
}

async function produce(count) {
  const producer = new Producer({ ...options, producerGroup: 'node_producers' });
  await producer.ready();
  for (let number = 0; number < count; number += 50) {
    const some = Array.from({ length: Math.min(50, count - number) }, (_, at) => message(number + at));
    const sums = some.map(each => sha(each.body));
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

async function consume(group, count, tags) {
  const consumer = new Consumer({ ...options, consumerGroup: group,
    consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET' });
  await consumer.ready();
  const found = new Map();
  await new Promise(resolve => {
    setTimeout(resolve, 60000).unref();
    consumer.subscribe(topic, tags, async each => {
      found.set(`${each.queueId}/${each.queueOffset}`, line(each, each.queueId, each.queueOffset));
      if (found.size >= count) setTimeout(resolve, 500); // it counts when this has returned
    });
  });
  await consumer.close(); // which tells the broker how far it is
  for (const each of found.values()) console.log(each);
}

const work = mode === 'produce' ? produce(Number(rest[0])) : consume(rest[0], Number(rest[1]), rest[2]);
// What was printed is flushed first: leaving does not wait for a pipe.
work.then(() => process.stdout.write('', () => process.exit(0)), error => {
  console.error(error);
  process.exit(1);
});
