// Decimation: bounded points and memory, exact ends and extremes, exact rows of narrow ranges.
import { once } from 'node:events';
import { createWriteStream, mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { eventsPath } from '../../lib/watch/events.js';
import { RunIndex } from '../../lib/watch/run-index.js';
import { type Points, Track } from '../../lib/watch/track.js';

test('points keep minimum, maximum and mean of their rows', () => {
  const track = new Track(64);
  for (let step = 1; step <= 1000; step++) {
    track.add(step, 1000 * step, { loss: step === 700 ? -5 : step % 10, rare: step });
  }
  expect(track.bucketCount).toBeLessThanOrEqual(64);
  const { step, rows, columns } = track.decimate({ axis: 'step' }, 40);
  expect(step.length).toBeLessThanOrEqual(42);
  expect(step[0]).toBe(1);
  expect(rows * step.length).toBeGreaterThanOrEqual(1000);
  const { min = [], max = [], mean = [] } = columns.loss ?? {};
  expect(Math.min(...(min as number[]))).toBe(-5);
  expect(Math.max(...(max as number[]))).toBe(9);
  expect(mean.every((value, i) => value !== null && value >= (min[i] ?? 0))).toBe(true);
});

test('a column that begins later has gaps before', () => {
  const track = new Track();
  track.add(1, 1, { loss: 1 });
  track.add(2, 2, { loss: 2, late: 5 });
  expect(track.decimate({ axis: 'step' }, 10).columns.late).toEqual({ mean: [null, 5] });
  expect(track.latestValues()).toEqual({ loss: 2, late: 5 });
});

test('groups stay where they are while rows are added', () => {
  const track = new Track();
  const points = () => track.decimate({ axis: 'step' }, 10);
  for (let step = 0; step < 100; step++) track.add(step, step, { loss: step });
  const before = points();
  for (let step = 100; step < 110; step++) track.add(step, step, { loss: step });
  const after = points();
  expect(after.step.slice(0, 6)).toEqual(before.step.slice(0, 6));
  expect(after.columns.loss?.mean.slice(0, 6)).toEqual(before.columns.loss?.mean.slice(0, 6));
});

test('a range on the time axis has one more point on each side', () => {
  const track = new Track();
  for (let step = 0; step < 10; step++) track.add(step, 1000 + 10 * step, { loss: step });
  const { step } = track.decimate({ axis: 'time', from: 1030, to: 1050 }, 100);
  expect(step).toEqual([2, 3, 4, 5, 6]);
});

test('times stay in order if the clock goes back', () => {
  const track = new Track();
  for (const [step, time] of [
    [1, 100],
    [2, 50],
    [3, 120],
  ] as const) {
    track.add(step, time, { loss: 1 });
  }
  expect(track.decimate({ axis: 'step' }, 10).time).toEqual([100, 100, 120]);
});

test('a million rows give few points for the whole and every row of a narrow range', async () => {
  const dir = mkdtempSync(join(tmpdir(), 'ds-watch-'));
  try {
    mkdirSync(join(dir, 'watch'));
    const file = createWriteStream(eventsPath(dir));
    for (let block = 0; block < 100; block++) {
      let text = '';
      for (let i = 1; i <= 10_000; i++) {
        const step = block * 10_000 + i;
        const loss = step === 654_321 ? 99 : Math.round(1e4 * Math.sin(step)) / 1e4;
        text += `{"e":"row","track":"train","step":${step},"values":{"loss":${loss}},"time":${step}}\n`;
      }
      if (!file.write(text)) await once(file, 'drain');
    }
    await new Promise<void>((resolve) => file.end(() => resolve()));
    const run = new RunIndex(dir, 'run');
    let longest = 0;
    let last = performance.now();
    const watch = setInterval(() => {
      longest = Math.max(longest, performance.now() - last);
      last = performance.now();
    }, 5);
    await run.update();
    clearInterval(watch);
    expect(run.summarize()).toMatchObject({ step: 1_000_000, read: 1 });
    const { train } = await run.readSeries({ axis: 'step' }, 800);
    expect(train.step.length).toBeLessThanOrEqual(802);
    expect(Math.max(...((train.columns.loss as Points).max as number[]))).toBe(99);
    const narrow = await run.readSeries({ axis: 'step', from: 654_300, to: 654_340 }, 800);
    expect(narrow.train.rows).toBe(1);
    expect(narrow.train.columns.loss?.mean[narrow.train.step.indexOf(654_321)]).toBe(99);
    process.stdout.write(`longest wait of the event loop: ${longest.toFixed(0)} ms\n`);
  } finally {
    rmSync(dir, { recursive: true });
  }
});
