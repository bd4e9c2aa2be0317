// When speculation pauses for clipping, and when it is tried again.
import { ClipWindow, windowLength } from '../../lib/zero/schedule/clip-window.js';

function record(window: ClipWindow, missed: boolean, times: number): void {
  for (let i = 0; i < times; ++i) window.record(missed);
}

test('speculates until a whole window is known', () => {
  const window = new ClipWindow();
  record(window, true, windowLength - 1);
  expect(window.speculate).toBe(true);
  window.record(true);
  expect(window.speculate).toBe(false);
});

test.each([
  [12, true],
  [13, false],
])('%p missed steps of 20: speculate %p', (missed, speculate) => {
  const window = new ClipWindow();
  record(window, true, missed);
  record(window, false, windowLength - missed);
  expect(window.speculate).toBe(speculate);
});

test('pauses for 20 steps and is then judged by them alone', () => {
  const window = new ClipWindow();
  record(window, true, windowLength);
  record(window, false, windowLength - 1);
  expect(window.speculate).toBe(false);
  window.record(false);
  expect(window.speculate).toBe(true);
});

test('a pause in which every step was clipped is followed by another', () => {
  const window = new ClipWindow();
  record(window, true, 2 * windowLength);
  expect(window.speculate).toBe(false);
});

test('a miss now and then never pauses', () => {
  const window = new ClipWindow();
  for (let i = 0; i < 200; ++i) {
    window.record(i % 2 === 0);
    expect(window.speculate).toBe(true);
  }
});
