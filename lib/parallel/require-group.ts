// Checks arguments of functions over ranks of a group, for plain JavaScript callers.
import { ProcessGroup } from '../comm/index.js';
import { DsError } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';
import { requireTensor } from '../tensor/ops/shapes.js';

/** Throws DS_ARGUMENT with `op` unless `group` is a process group. */
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

/** Throws DS_ARGUMENT unless the arguments are a tensor and a group. */
export function requireShared(op: string, x: unknown, group: unknown): void {
  requireTensor(op, x);
  requireGroup(op, group);
}
