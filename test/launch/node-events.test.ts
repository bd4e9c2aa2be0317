// The lines that the launcher of a node writes for the launcher that started it.
import type { Exit } from '../../lib/launch/member.js';
import {
  decodeEvent,
  EventSink,
  encodeEvent,
  type NodeEvent,
} from '../../lib/launch/node-events.js';

const failed: Exit = { code: 3, signal: null, who: 'rank 1', lastLines: ['Error: "x"'] };

test.each<NodeEvent>([
  { line: [0, 'out', 'a line'] },
  { line: [7, 'err', 'with "quotes", \\ and \u2028'] },
  { failed },
])('%j is one line, which reads back as itself', (event) => {
  const text = encodeEvent(event);
  // The reader waits for the end of a line: without it the job hangs.
  expect(text.indexOf('\n')).toBe(text.length - 1);
  expect(decodeEvent(text.slice(0, -1))).toEqual(event);
});

test('a sink writes each line of a rank as one event', () => {
  const written: string[] = [];
  const sink = new EventSink((text) => written.push(text));
  sink.line(2, 'err', 'first');
  sink.line(3, 'out', '');
  sink.end();
  expect(written).toEqual(['{"line":[2,"err","first"]}\n', '{"line":[3,"out",""]}\n']);
});

test.each(['', 'Last login: today', '{', 'null', '3', '"line"', '[]', '{}', '{"lines":[]}'])(
  '%j is not an event',
  (line) => {
    expect(decodeEvent(line)).toBeNull();
  },
);
