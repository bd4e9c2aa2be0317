// Tests for which updates the copies of gradients to the host wait: waits that nothing needs would
// delay backward.
import { cpu } from '../../lib/runtime/device.js';
import { Event, Stream } from '../../lib/runtime/stream.js';
import type { ShardState } from '../../lib/zero/state/shard-state.js';
import { tinyEngine, trainTiny } from '../e2e/tiny-training.js';

test.each([
  [false, 'deferred updates have ended when the next gradient arrives'],
  [true, 'speculative updates still read the memory that receives the gradient'],
])('speculative: %s, %s', async (speculative) => {
  const engine = await tinyEngine({ precision: 'bf16', offload: true, speculative }, cpu());
  trainTiny(engine, 0, 2);
  const [share] = engine.parts.state.updateGroups;
  const state = share?.state as ShardState;
  const updated = engine.parts.stage.partitions.flatMap((partition) =>
    state.partOf(partition).tiles.map((tile) => tile.updated),
  );
  expect(updated.every((event) => event instanceof Event)).toBe(true);
  const waits = jest.spyOn(Stream.prototype, 'wait');
  const step = engine.step.bind(engine);
  let seen: unknown[] = [];
  engine.step = () => {
    // The waits of this backward.
    seen = waits.mock.calls.map(([event]) => event);
    step();
  };
  trainTiny(engine, 2, 3);
  waits.mockRestore();
  const waited = updated.filter((event) => seen.includes(event));
  expect(waited).toHaveLength(speculative ? updated.length : 0);
  engine.destroy();
});
