// Creates the communication logger from the section comms_logger.
import type { ResolvedConfig } from '../../../types/config.js';
import { type CollectiveKind, CommsLogger } from '../../comm/index.js';

type Section = ResolvedConfig['comms_logger'];

/** DeepSpeed's names of each collective, including variants by layout. */
const kinds: Record<Section['prof_ops'][number], CollectiveKind> = {
  all_reduce: 'allReduce',
  all_reduce_coalesced: 'allReduce',
  reduce_scatter: 'reduceScatter',
  reduce_scatter_base: 'reduceScatter',
  reduce_scatter_tensor: 'reduceScatter',
  reduce_scatter_coalesced: 'reduceScatter',
  all_gather: 'allGather',
  all_gather_base: 'allGather',
  all_gather_into_tensor: 'allGather',
  all_gather_coalesced: 'allGather',
  all_to_all: 'allToAll',
  all_to_all_single: 'allToAll',
  broadcast: 'broadcast',
  reduce: 'reduce',
  send: 'send',
  isend: 'send',
  recv: 'recv',
  irecv: 'recv',
  barrier: 'barrier',
};

/** Returns the logger of `section`, or null if it is off. It prints if `prints`. */
export function buildCommsLogger(section: Section, prints: boolean): CommsLogger | null {
  if (!section.enabled) return null;
  const print = (line: string): void => void process.stdout.write(`${line}\n`);
  return new CommsLogger({
    profAll: section.prof_all,
    ops: section.prof_ops.map((name) => kinds[name]),
    verbose: section.verbose && prints ? print : undefined,
  });
}
