// Tests which events a group's stream waits for, and which events compute waits for.

import { distributed, initDistributed, type ProcessGroup } from '../../lib/comm/index.js';
import { SideStream } from '../../lib/comm/process-group.js';
import { DsError } from '../../lib/errors.js';
import { cpu } from '../../lib/runtime/device.js';
import { Event, Stream } from '../../lib/runtime/stream.js';

/** The waits that `body` enqueues, as "A after the work so far of B". */
function waitsOf(localStream: Stream, body: () => void): string[] {
  const lines: string[] = [];
  const marked = new Map<Event, Stream>();
  const name = (stream?: Stream): string => (stream === localStream ? 'own' : 'compute');
  jest.spyOn(Event.prototype, 'record').mockImplementation(function (this: Event, stream) {
    marked.set(this, stream);
    return this;
  });
  jest.spyOn(Stream.prototype, 'wait').mockImplementation(function (this: Stream, event) {
    lines.push(`${name(this)} after ${name(marked.get(event))}`);
  });
  body();
  jest.restoreAllMocks();
  return lines;
}

test('the parallel stream waits for compute; compute waits only on request', () => {
  const beside = new SideStream(cpu(), 'world');
  const localStream = beside.follow();
  expect(localStream).not.toBe(cpu().compute);
  expect(localStream.name).toBe('exchanges of world');
  expect(beside.lead()).toBe(localStream);
  expect(waitsOf(localStream, () => beside.follow())).toEqual(['own after compute']);
  expect(waitsOf(localStream, () => beside.lead())).toEqual([
    'own after compute',
    'compute after own',
  ]);
  beside.dispose();
});

test('a job ends even if its device hangs, and a new job can start', async () => {
  const job = await initDistributed({ device: 'cpu' });
  for (let i = 0; i < 2; ++i) ((await job.newGroup([0])) as ProcessGroup).beside.follow();
  const { dispose } = Stream.prototype;
  const spy = jest.spyOn(Stream.prototype, 'dispose').mockImplementation(function (this: Stream) {
    dispose.call(this);
    throw new DsError({ code: 'DS_CUDA', op: 'synchronize', expected: 'an end', got: 'none' });
  });
  await job.destroy();
  expect(spy).toHaveBeenCalledTimes(2);
  jest.restoreAllMocks();
  expect(distributed()).toBeNull();
});
