// The merging of ranks' lines, by a clock that the test moves.
import { MergedOutput } from '../../lib/launch/merged-output.js';

function mergeOutput(worldSize: number) {
  const lines: string[] = [];
  const clock = { now: 0 };
  const write = (stream: string, text: string) => lines.push(`${stream} ${text}`);
  const output = new MergedOutput(write, { worldSize, window: 100, now: () => clock.now });
  const later = (milliseconds: number) => {
    clock.now += milliseconds;
    output.flush();
    return lines;
  };
  return { output, lines, later };
}

test('a line of all ranks is printed once, when the last one has it', () => {
  const { output, lines } = mergeOutput(3);
  for (const rank of [2, 0, 1]) {
    expect(lines).toEqual([]);
    output.line(rank, 'out', 'epoch 1');
  }
  expect(lines).toEqual(['out epoch 1']);
});

test('a line of some ranks names them after the window', () => {
  const { output, later } = mergeOutput(5);
  for (const rank of [4, 0, 2, 1]) output.line(rank, 'err', 'late');
  expect(later(99)).toEqual([]);
  expect(later(1)).toEqual(['err [0-2,4] late']);
  output.line(3, 'err', 'late');
  expect(later(100)).toEqual(['err [0-2,4] late', 'err [3] late']);
});

test('lines of a rank keep their order, also equal ones', () => {
  const { output, later } = mergeOutput(2);
  for (const text of ['a', 'a', 'b', 'a']) output.line(0, 'out', text);
  for (const text of ['a', 'b', 'a']) output.line(1, 'out', text);
  expect(later(100)).toEqual(['out a', 'out [0] a', 'out b', 'out a']);
});

test('the same text in the two streams is two lines', () => {
  const { output, later } = mergeOutput(2);
  output.line(0, 'out', 'x');
  output.line(1, 'err', 'x');
  expect(later(100)).toEqual(['out [0] x', 'err [1] x']);
});

test('a lone rank is not delayed; the end lets everything out', () => {
  const alone = mergeOutput(1);
  alone.output.line(0, 'out', 'now');
  expect(alone.lines).toEqual(['out now']);
  const pair = mergeOutput(2);
  pair.output.line(1, 'out', 'last');
  pair.output.end();
  expect(pair.lines).toEqual(['out [1] last']);
});

test('many different lines pass in order', () => {
  const { output, later } = mergeOutput(2);
  for (let i = 0; i < 20_000; i++) output.line(i % 2, 'out', String(i));
  output.end();
  expect(later(0).map((line) => line.replace(/.* /, ''))).toEqual(
    Array.from({ length: 20_000 }, (_, i) => String(i)),
  );
});

/** Far more than it takes, and less than where a line takes longer the more of them there are. */
const LIMIT_MS = 60_000;

test(
  'many equal lines of ranks that are far apart leave the event loop its turns',
  async () => {
    const { output, lines } = mergeOutput(3);
    const [count, turn] = [200_000, () => new Promise((resolve) => setTimeout(resolve))];
    for (const rank of [0, 1, 2]) {
      for (let i = 0; i < count; i++) output.line(rank, 'out', 'again');
      await turn();
    }
    expect(lines).toEqual(new Array(count).fill('out again'));
  },
  LIMIT_MS,
);
