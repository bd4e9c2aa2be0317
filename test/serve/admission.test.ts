// Tests how many requests a server admits, and when its end is reached.
import { Admission } from '../../lib/serve/admission.js';

test('an ended request frees one place, even if its end is reported twice', () => {
  const admission = new Admission(2);
  const [first] = [admission.enter(), admission.enter()];
  expect(() => admission.enter()).toThrow('2 requests run or wait');
  first();
  first();
  admission.enter();
  expect(() => admission.enter()).toThrow('2 requests run or wait');
});

test('each client has its own limit', () => {
  const admission = new Admission(4, 2);
  const leave = admission.enter('a');
  admission.enter('a');
  expect(() => admission.enter('a')).toThrow(
    '2 requests run or wait, the most that this server takes of one key',
  );
  admission.enter('b');
  leave();
  leave();
  admission.enter('a');
  expect(() => admission.enter('a')).toThrow('of one key');
  admission.enter('c');
  expect(() => admission.enter('d')).toThrow(
    '4 requests run or wait, the most that this server takes.',
  );
});

test('close() waits for the last request, and admits no more', async () => {
  const admission = new Admission(2);
  const [first, second] = [admission.enter(), admission.enter()];
  const log: string[] = [];
  const closed = admission.close().then(() => log.push('closed'));
  expect(() => admission.enter()).toThrow('The server is stopping.');
  first();
  await new Promise(setImmediate);
  expect(log).toEqual([]);
  second();
  // Without the end of the last request, this would take for ever.
  await closed;
  expect(log).toEqual(['closed']);
  await admission.close();
});
