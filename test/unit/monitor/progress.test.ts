// Console progress: one redrawn line on a terminal, a few plain lines elsewhere.
import { Progress, progressLine } from '../../../lib/monitor/index.js';

const report = { step: 60, loss: 5.3214, lr: 3e-3, tokensPerSecond: 9812.4, memoryBytes: 432e6 };

/** Collects what is written. */
function stream(isTTY: boolean): NodeJS.WriteStream & { text: string } {
  const out = {
    isTTY,
    columns: 40,
    text: '',
    write(chunk: string) {
      out.text += chunk;
      return true;
    },
  };
  return out as unknown as NodeJS.WriteStream & { text: string };
}

test('a line holds step, loss, rate, speed and memory', () => {
  expect(progressLine(120, report)).toBe(
    '[============------------]  60/120  loss 5.321  lr 3.00e-3  9,812 tokens/s  412 MiB',
  );
});

test('without a terminal there are no control characters and about as many lines as asked', () => {
  const out = stream(false);
  const progress = new Progress({ total: 100, stream: out, lines: 10 });
  for (let step = 1; step <= 100; ++step) progress.update({ ...report, step });
  progress.finish();
  const lines = out.text.split('\n');
  expect(lines).toHaveLength(12);
  expect(out.text).toMatch(/^[ -~\n]*$/);
  expect(lines[0]).toContain('  1/100');
  expect(lines[10]).toContain('100/100');
});

test('on a terminal the line is redrawn within its width', () => {
  const out = stream(true);
  const progress = new Progress({ total: 3, stream: out });
  for (let step = 1; step <= 3; ++step) progress.update({ ...report, step });
  progress.finish();
  expect(out.text.split('\n')).toHaveLength(2);
  for (const line of out.text.trimEnd().split('\r\x1b[2K')) expect(line.length).toBeLessThan(40);
});
