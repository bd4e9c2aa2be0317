// Tests console progress: one redrawn line on a terminal, a few plain lines elsewhere, at most 80
// columns wide.
import { ProgressBar, progressLine } from '../../lib/monitor/index.js';

const report = {
  step: 60,
  loss: 5.3214,
  lr: 3e-3,
  tokensPerSecond: 9812.4,
  mfu: 0.4123,
  memoryBytes: 432e6,
};

/** A stream that collects its output. */
function stream(isTTY: boolean, columns = 40): NodeJS.WriteStream & { text: string } {
  const out = {
    isTTY,
    columns,
    text: '',
    write(chunk: string) {
      out.text += chunk;
      return true;
    },
  };
  return out as unknown as NodeJS.WriteStream & { text: string };
}

test('a line holds step, loss, speed, utilization, memory and the time left, in 79 columns', () => {
  const line = progressLine(120, report, 83);
  expect(line).toBe(
    '[=====-----]  60/120  loss 5.321  9,812 tokens/s  MFU 41.2%  412 MiB  1:23 left',
  );
  expect(line).toHaveLength(79);
  expect(progressLine(120, { step: 60, loss: 5.3214, lr: 3e-3 })).toBe(
    '[============------------]  60/120  loss 5.321  lr 3.00e-3',
  );
});

test('large numbers push out what matters least; step, loss and time stay', () => {
  const large = { ...report, step: 99_999, tokensPerSecond: 512_345, memoryBytes: 7.5e10 };
  const line = progressLine(100_000, large, 36_123);
  expect(line.length).toBeLessThan(80);
  expect(line).toMatch(/^\[=+-*\] {2}?99999\/100000 {2}loss 5\.321 {2}512,345 tokens\/s {2}/);
  expect(line).toMatch(/ {2}10:02:03 left$/);
  for (let columns = 1; columns < 100; ++columns) {
    expect(progressLine(100_000, large, 36_123, columns).length).toBeLessThanOrEqual(
      Math.max(1, columns - 1),
    );
  }
});

test('the time left follows the speed so far, also after a resume', () => {
  const out = stream(false);
  let now = 0;
  const bar = new ProgressBar({ total: 100, stream: out, lines: 100, now: () => now });
  for (const step of [41, 42, 43]) {
    bar.update({ step, loss: 1 });
    now += 2000;
  }
  const [first, second, third] = out.text.split('\n');
  expect(first).toMatch(/41\/100 {2}loss 1\.000$/);
  expect(second).toMatch(/42\/100 {2}loss 1\.000 {2}1:56 left$/);
  expect(third).toMatch(/43\/100 {2}loss 1\.000 {2}1:54 left$/);
});

test('without a terminal, prints no control characters and about the requested number of lines', () => {
  const out = stream(false);
  const progress = new ProgressBar({ total: 100, stream: out, lines: 10 });
  for (let step = 1; step <= 100; ++step) progress.update({ ...report, step });
  progress.finish();
  const lines = out.text.split('\n');
  expect(lines).toHaveLength(12);
  expect(out.text).toMatch(/^[ -~\n]*$/);
  expect(lines[0]).toContain('  1/100');
  expect(lines[10]).toContain('100/100');
});

test.each([40, 80, 200])(
  'on a terminal of %d columns the line is redrawn in one row',
  (columns) => {
    const out = stream(true, columns);
    const progress = new ProgressBar({ total: 3, stream: out });
    for (let step = 1; step <= 3; ++step) progress.update({ ...report, step });
    progress.finish();
    expect(out.text.split('\n')).toHaveLength(2);
    for (const line of out.text.trimEnd().split('\r\x1b[2K')) {
      expect(line.length).toBeLessThan(Math.min(80, columns));
    }
  },
);
