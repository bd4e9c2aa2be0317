// A stop acts on all ranks after the same step, and aborts the signal with its reason.
import { StopRequest } from '../../lib/engine/step/step-decisions.js';
import { thrownBy } from '../support/refusal.js';

test('one rank stops at once, with the reason of its first request', () => {
  const stop = new StopRequest({ worldSize: 1, signals: [] });
  const { signal } = stop;
  expect([stop.isDue, signal.aborted]).toEqual([false, false]);
  stop.request('a callback');
  stop.request('another one');
  expect([stop.isRequested, stop.isDue, signal.aborted]).toEqual([true, true, true]);
  expect(signal.reason).toEqual(new Error('Stop requested by a callback.'));
  stop.dispose();
});

test('a rank of several stops after the step that follows the agreement', () => {
  const stop = new StopRequest({ worldSize: 2, signals: [] });
  const { signal } = stop;
  stop.markStep();
  stop.markAgreement();
  expect([stop.isDue, signal.aborted]).toEqual([false, false]);
  stop.markStep();
  // The end of a step aborts the signal; nothing else reads isDue.
  expect(signal.aborted).toBe(true);
  expect(signal.reason).toEqual(new Error('Stop requested by another rank.'));
  stop.markAgreement();
  expect(stop.isDue).toBe(true);
  stop.dispose();
});

test('signals are checked', () => {
  const signals = ['SIGNONE'] as never;
  expect(thrownBy(() => new StopRequest({ worldSize: 1, signals })).code).toBe('DS_ARGUMENT');
});

test('a request that has ended listens to no signal again', () => {
  const signal = 'SIGUSR2';
  const before = process.listenerCount(signal);
  const stop = new StopRequest({ worldSize: 1, signals: [signal] });
  stop.markStep();
  expect(process.listenerCount(signal)).toBe(before);
  expect(stop.isDue).toBe(false);
  expect(process.listenerCount(signal)).toBe(before + 1);
  stop.dispose();
  expect([stop.isDue, stop.signal.aborted]).toEqual([false, false]);
  stop.markStep();
  expect(process.listenerCount(signal)).toBe(before);
  stop.dispose();
});
