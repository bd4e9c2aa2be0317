// DeepSpeed's names of collectives in comms_logger.prof_ops, and the collectives that they log.
import { kindOf } from '../../lib/engine/setup/observers.js';

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
