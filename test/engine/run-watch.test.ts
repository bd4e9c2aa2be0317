// engine.watch() records what a program gives it, and refuses values that are no numbers or texts.
import { RunWatch } from '../../lib/engine/watch/run-watch.js';
import { thrownBy } from '../support/refusal.js';

function opened() {
  const events: object[] = [];
  const calls: string[] = [];
  const parts = {
    log: {
      write: (event: object) => void events.push(event),
      flush: async () => void calls.push('flush'),
    },
    recorder: { pause: () => void calls.push('pause') },
    step: () => 7,
    end: (reason: string) => void calls.push(`end ${reason}`),
    close: async () => void calls.push('close'),
  };
  return { watch: new RunWatch('dir', null, parts as never), events, calls };
}

test('events have their step', async () => {
  const { watch, events, calls } = opened();
  watch.scalars({ a: 1, b: Number.NaN });
  watch.evaluated({ loss: 2 });
  watch.text({ text: 'b' });
  watch.log('line');
  watch.notice('odd');
  watch.notice('late', 'warning');
  watch.speed(3, { tokens: 9 });
  watch.length(12);
  watch.length(Number.POSITIVE_INFINITY);
  expect(events).toEqual([
    { e: 'row', track: 'own', step: 7, values: { a: 1, b: Number.NaN } },
    { e: 'row', track: 'eval', step: 7, values: { loss: 2 } },
    { e: 'text', step: 7, prompt: '', text: 'b' },
    { e: 'log', line: 'line' },
    { e: 'notice', level: 'info', message: 'odd', step: 7 },
    { e: 'notice', level: 'warning', message: 'late', step: 7 },
    { e: 'row', track: 'speed', step: 3, values: { tokens: 9 } },
    { e: 'length', steps: 12 },
  ]);
  watch.pause();
  watch.ended('finished');
  await watch.flush();
  await watch.close();
  await watch.close();
  expect(calls).toEqual(['pause', 'end finished', 'flush', 'close']);
});

test.each<[name: string, call: (watch: RunWatch) => void]>([
  ['watch b', (watch) => watch.scalars({ a: 1, b: '2' as never })],
  ['watch loss', (watch) => watch.evaluated({ loss: null as never })],
  ['watch.text text', (watch) => watch.text({ text: 3 as never })],
  ['watch.log', (watch) => watch.log({} as never)],
  ['watch.notice level', (watch) => watch.notice('odd', 'fatal' as never)],
  ['watch.notice', (watch) => watch.notice(5 as never)],
])('%s refuses another type, on every rank', (name, call) => {
  const { watch, events } = opened();
  for (const one of [watch, new RunWatch('dir', null, null)])
    expect(thrownBy(() => call(one))).toMatchObject({ code: 'DS_ARGUMENT', op: name });
  expect(events).toEqual([]);
});

test('a rank without a page records nothing', async () => {
  const watch = new RunWatch('dir', null, null);
  watch.scalars({ a: 1 });
  watch.text({ text: 'b' });
  watch.log('line');
  watch.notice('odd');
  watch.ended('finished');
  await watch.flush();
  await watch.close();
});
