// The log of collectives: DeepSpeed's names in comms_logger.prof_ops, and loggers of groups.
import { CommsLogger, type ProcessGroup } from '../../lib/comm/index.js';
import { resolveConfig } from '../../lib/config/index.js';
import type { Ranks } from '../../lib/engine/ranks.js';
import { ReleaseStack } from '../../lib/engine/release-stack.js';
import { kindOf, openObservers } from '../../lib/engine/setup/observers.js';

test.each<[kind: string, names: readonly Parameters<typeof kindOf>[0][]]>([
  ['allReduce', ['all_reduce', 'all_reduce_coalesced']],
  ['reduceScatter', ['reduce_scatter', 'reduce_scatter_base', 'reduce_scatter_tensor']],
  ['reduceScatter', ['reduce_scatter_coalesced']],
  ['allGather', ['all_gather', 'all_gather_base', 'all_gather_into_tensor']],
  ['allGather', ['all_gather_coalesced']],
  ['allToAll', ['all_to_all', 'all_to_all_single']],
  ['broadcast', ['broadcast']],
  ['reduce', ['reduce']],
  ['send', ['send', 'isend']],
  ['recv', ['recv', 'irecv']],
  ['barrier', ['barrier']],
])('%s is logged as %s', (kind, names) => {
  expect(names.map(kindOf)).toEqual(names.map(() => kind));
});

test.each([true, false])('a failed build restores the loggers (comms_logger %s)', (enabled) => {
  const config = resolveConfig(
    { train_batch_size: 2, comms_logger: { enabled } },
    { worldSize: 2 },
  );
  const before = new CommsLogger({});
  const group = (logger: CommsLogger | null) => ({ rank: 1, size: 2, logger }) as ProcessGroup;
  const [world, dataGroup] = [group(null), group(before)];
  const others = { shardGroup: dataGroup, broadcastGroup: dataGroup, tensorGroup: null };
  const none = { sequenceGroup: null, replicaGroup: null, secondaryGroup: null };
  const ranks = { world, dataGroup, ...others, ...none } as Ranks;
  const site = { owned: new ReleaseStack(), undo: new ReleaseStack() };
  expect(openObservers(config, {}, ranks, site)).toEqual([]);
  expect(dataGroup.logger === before).toBe(!enabled);
  expect(world.logger).toBe(enabled ? dataGroup.logger : null);
  site.undo.release();
  expect([world.logger, dataGroup.logger]).toEqual([null, before]);
});
