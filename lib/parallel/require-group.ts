// Checks the arguments of functions over a process group, for callers in plain JavaScript.
import { ProcessGroup } from '../comm/index.js';
import { DsError } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';
import { requireTensor } from '../tensor/ops/shapes.js';

/** Throws DS_ARGUMENT for the operation `op` unless `group` is a process group. */
export function requireGroup(op: string, group: unknown): asserts group is ProcessGroup {
  if (group instanceof ProcessGroup) return;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op,
    expected: 'a process group',
    got: formatValue(group),
    hint: 'initDistributed() returns the job: use job.world, or await job.newGroup(ranks).',
  });
}

/** Throws DS_ARGUMENT for the operation `op` unless `x` is a tensor and `group` a process group. */
export function requireShared(op: string, x: unknown, group: unknown): void {
  requireTensor(op, x);
  requireGroup(op, group);
}
