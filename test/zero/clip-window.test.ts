// When speculation pauses for clipping, and when it goes on.
import { ClipWindow, fewestSteps, windowLength } from '../../lib/zero/schedule/clip-window.js';

function record(window: ClipWindow, missed: boolean, times: number): void {
  for (let i = 0; i < times; ++i) window.record(missed);
}

test('speculates until a few steps are known', () => {
  const window = new ClipWindow();
  record(window, true, fewestSteps - 1);
  expect(window.speculate).toBe(true);
  window.record(true);
  expect(window.speculate).toBe(false);
});

test.each([
  [6, true],
  [7, false],
])('%p missed steps behind some that held: speculate %p', (missed, speculate) => {
  const window = new ClipWindow();
  record(window, false, windowLength);
  record(window, true, missed);
  expect(window.speculate).toBe(speculate);
});

test('goes on once most of the last steps would have held', () => {
  const window = new ClipWindow();
  record(window, true, windowLength);
  record(window, false, 5);
  expect(window.speculate).toBe(false);
  window.record(false);
  expect(window.speculate).toBe(true);
});

test('a run that always clips is not tried out again', () => {
  const window = new ClipWindow();
  record(window, true, 5 * windowLength);
  expect(window.speculate).toBe(false);
});

test('a miss now and then never pauses', () => {
  const window = new ClipWindow();
  for (let i = 0; i < 200; ++i) {
    window.record(i % 2 === 0);
    expect(window.speculate).toBe(true);
  }
});
