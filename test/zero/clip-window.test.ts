// When speculation pauses for clipping, and when it goes on.
import { ClipWindow, windowLength } from '../../lib/zero/schedule/speculation-policy.js';

function record(window: ClipWindow, missed: boolean, times: number): void {
  for (let i = 0; i < times; ++i) window.record(missed);
}

test('speculates at the start, and stops if the first step missed', () => {
  const window = new ClipWindow();
  expect(window.isSpeculative).toBe(true);
  window.record(true);
  expect(window.isSpeculative).toBe(false);
});

test('a run that missed only its first step continues after four good steps', () => {
  const window = new ClipWindow();
  window.record(true);
  record(window, false, 3);
  expect(window.isSpeculative).toBe(false);
  window.record(false);
  expect(window.isSpeculative).toBe(true);
});

test.each([
  [3, true],
  [4, false],
])('%p missed steps behind some that held: speculate %p', (missed, speculate) => {
  const window = new ClipWindow();
  record(window, false, windowLength);
  record(window, true, missed);
  expect(window.isSpeculative).toBe(speculate);
});

test('resumes when nearly all of the last steps would have held', () => {
  const window = new ClipWindow();
  record(window, true, windowLength);
  record(window, false, 7);
  expect(window.isSpeculative).toBe(false);
  window.record(false);
  expect(window.isSpeculative).toBe(true);
});

test('a run that always clips stays without speculation', () => {
  const window = new ClipWindow();
  record(window, true, 5 * windowLength);
  expect(window.isSpeculative).toBe(false);
});

test('occasional misses never pause speculation', () => {
  const window = new ClipWindow();
  record(window, false, 3);
  for (let i = 0; i < 200; ++i) {
    window.record(i % 4 === 3);
    expect(window.isSpeculative).toBe(true);
  }
});
