// Turns of prompts: round robin over clients and their connections, and a slot for short prompts.
import { FairQueue, type QueueClient } from '../../lib/serve/fair-queue.js';

const never = new AbortController().signal;
const [first, second] = [{}, {}];

const askerOf = (client: string, connection: object = first, signal = never): QueueClient => ({
  client,
  connection,
  signal,
});

/** Lets resolved promises continue. */
const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

/** Enters prompts, and keeps the order of their turns. */
function crowd(slots: number) {
  const queue = new FairQueue(slots);
  const order: string[] = [];
  const ends = new Map<string, () => void>();
  const enter = (name: string, queueClient: QueueClient, isLong = false): Promise<void> =>
    queue.enter(queueClient, isLong).then((end) => {
      order.push(name);
      ends.set(name, end);
    });
  const end = async (name: string): Promise<void> => {
    ends.get(name)?.();
    await turn();
  };
  return { order, enter, end };
}

test('clients take turns, with any number of prompts', async () => {
  const { order, enter, end } = crowd(1);
  for (const name of ['a1', 'a2', 'a3']) void enter(name, askerOf('a'));
  void enter('b1', askerOf('b'));
  await turn();
  expect(order).toEqual(['a1']);
  await end('a1');
  await end('a1'); // A turn ends once.
  expect(order).toEqual(['a1', 'a2']);
  await end('a2');
  await end('b1');
  expect(order).toEqual(['a1', 'a2', 'b1', 'a3']);
});

test('connections of one client take turns', async () => {
  const { order, enter, end } = crowd(1);
  for (const name of ['a1', 'a2', 'a3']) void enter(name, askerOf('a', first));
  void enter('b1', askerOf('a', second));
  await turn();
  for (const name of ['a1', 'a2', 'b1', 'a3']) await end(name);
  expect(order.indexOf('b1')).toBeLessThan(order.indexOf('a3'));
});

test('long prompts leave a slot to short ones, and take the only one', async () => {
  const { order, enter, end } = crowd(2);
  for (const name of ['long1', 'long2']) void enter(name, askerOf('a'), true);
  await turn();
  expect(order).toEqual(['long1']);
  void enter('short', askerOf('a'));
  await turn();
  expect(order).toEqual(['long1', 'short']);
  await end('short');
  expect(order).toEqual(['long1', 'short']);
  await end('long1');
  expect(order).toEqual(['long1', 'short', 'long2']);
  const single = crowd(1);
  void single.enter('long', askerOf('a'), true);
  await turn();
  expect(single.order).toEqual(['long']);
});

test('the prompt of an ended request leaves the queue', async () => {
  const { order, enter, end } = crowd(1);
  const controller = new AbortController();
  void enter('a1', askerOf('a'));
  const left = enter('b1', askerOf('b', first, controller.signal));
  void enter('c1', askerOf('c'));
  await turn();
  controller.abort(new Error('gone'));
  await expect(left).rejects.toThrow('gone');
  await end('a1');
  expect(order).toEqual(['a1', 'c1']);
  expect(() => enter('d1', askerOf('d', first, controller.signal))).toThrow('gone');
});
