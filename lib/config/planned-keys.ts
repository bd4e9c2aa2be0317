// Keys of ZeRO with "auto" that the plan fills, and their possible values.
import { required } from '../runtime/required.js';
import { PLANNED } from './auto-table.js';
import type { Draft } from './draft.js';
import { isSection, type Section } from './schema.js';

/** Values by dotted path: one way to fill the keys of the plan. */
export type PlannedWay = Readonly<Record<string, unknown>>;

const [STAGE, DEVICE, RATIO, WEIGHTS] = PLANNED;
const SPECULATION = 'zero_optimization.offload_optimizer.super_offload';
const SHARE = 'zero_optimization.offload_optimizer.gpu_share';

/** Values of offload_optimizer.ratio that the plan compares. */
const RATIOS = [0.25, 0.5, 0.75, 1];

/**
 * Dotted paths of `draft` that the plan fills; "auto" in place of a section means "auto" for its
 * keys.
 */
export function plannedKeys({ value: { zero_optimization: zero } }: Draft): ReadonlySet<string> {
  const keys = new Set<string>();
  if (!isSection(zero)) return keys;
  if (zero.offload_optimizer === 'auto') zero.offload_optimizer = { device: 'auto', ratio: 'auto' };
  if (zero.offload_param === 'auto') zero.offload_param = { device: 'auto' };
  for (const path of PLANNED)
    if (valueAt({ zero_optimization: zero }, path) === 'auto') keys.add(path);
  return keys;
}

/**
 * Returns the values that the plan can choose for `keys`. For offloaded state, a choice may also
 * disable speculative updates and gpu_share, unless the user has set them. If `isFull` is false,
 * the list has neither ratios nor these switches.
 */
export function waysToFill(
  { value }: Draft,
  keys: ReadonlySet<string>,
  isFull: boolean,
): PlannedWay[] {
  const isOpen = (path: string): boolean =>
    isFull && [undefined, null, 'auto'].includes(valueAt(value, path) as undefined);
  const valueOr = (path: string, otherwise: unknown): unknown => valueAt(value, path) ?? otherwise;
  const waysOf = (path: string, values: readonly unknown[]): PlannedWay[] =>
    keys.has(path) ? values.map((value) => ({ [path]: value })) : [{}];
  const hasDisk = valueOr('zero_optimization.offload_optimizer.nvme_path', null) !== null;
  const devices = ['none', 'cpu', ...(hasDisk ? ['nvme'] : [])];
  const optimizers = waysOf(DEVICE, devices).flatMap((item): PlannedWay[] => {
    const isInMemory = (item[DEVICE] ?? valueOr(DEVICE, 'none')) === 'cpu';
    const ratios = waysOf(RATIO, isInMemory && isFull ? RATIOS : [1]);
    const switches = [
      {},
      ...(isInMemory && isOpen(SHARE) ? [{ [SHARE]: 0 }] : []),
      ...(isInMemory && isOpen(SPECULATION) ? [{ [SPECULATION]: false }] : []),
      ...(isInMemory && isOpen(SHARE) && isOpen(SPECULATION)
        ? [{ [SHARE]: 0, [SPECULATION]: false }]
        : []),
    ];
    return ratios.flatMap((ratio) => switches.map((more) => ({ ...item, ...ratio, ...more })));
  });
  return waysOf(STAGE, [0, 1, 2, 3]).flatMap((stage) => {
    // Other stages ignore offload_param.
    const isCut = (stage[STAGE] ?? valueOr(STAGE, 0)) === 3;
    return optimizers.flatMap((optimizer) => {
      // Weights have a sixth of the bytes of the state, so the plan offloads the state first.
      const homes = isCut && optimizer[DEVICE] !== 'none' ? ['none', 'cpu'] : ['none'];
      return waysOf(WEIGHTS, homes).map((weights) => ({ ...stage, ...optimizer, ...weights }));
    });
  });
}

/** Writes the values of `way` into the draft. */
export function fillPlanned({ value, filled }: Draft, way: PlannedWay): void {
  for (const [path, filling] of Object.entries(way)) {
    const keys = path.split('.');
    const last = required(keys.pop());
    let section = value;
    for (const key of keys) {
      const inner = section[key];
      const next: Section = isSection(inner) ? inner : {};
      section[key] = next;
      section = next;
    }
    section[last] = filling;
    filled.set(path, { from: 'auto', of: 'the plan' });
  }
}

/**
 * Removes `keys` if there is no model for a plan: their defaults apply, as in DeepSpeed. Each key
 * gets a notice.
 */
export function dropPlanned(draft: Draft, keys: ReadonlySet<string>): void {
  for (const name of keys) {
    const path = name.split('.');
    const last = required(path.at(-1));
    delete (valueAt(draft.value, path.slice(0, -1).join('.')) as Section)[last];
    draft.note(
      'auto',
      path,
      'is "auto": the default applies, because only initialize() asks the plan.',
    );
  }
}

function valueAt(values: Section, path: string): unknown {
  return path
    .split('.')
    .reduce<unknown>((at, key) => (isSection(at) ? at[key] : undefined), values);
}
