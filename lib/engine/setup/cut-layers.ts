// Checks models whose layers are divided over the axis tp: their optimizer, and that the parts are
// complete.
import { findFlaw } from '../../checkpoint/tiling.js';
import type { Distributed } from '../../comm/index.js';
import { DsError } from '../../errors.js';
import type { Module } from '../../nn/module.js';
import { canExchange } from '../../optim/exchange.js';
import { canGather, canSum, type Optimizer } from '../../optim/optimizer.js';
import { type Box, isPart } from '../../runtime/box.js';
import { numel } from '../../runtime/view.js';

/** The part of a parameter that one rank saves and counts. */
interface NamedPart {
  name: string;
  whole: readonly number[];
  boxes: readonly Box[];
}

/** Whether ranks along tp hold parts of the model instead of copies. */
export function isCutOver({ mesh }: Distributed, module: Module): boolean {
  return mesh.size('tp') > 1 && module.parameters().some(({ region }) => isPart(region));
}

/** Returns the parts of this rank that are not replicas, in the order of the model. */
export function partsOf(module: Module): NamedPart[] {
  return Array.from(module.namedParameters()).flatMap(([name, { region, isReplica }]) =>
    isPart(region) && !isReplica ? [{ name, ...region }] : [],
  );
}

/**
 * Throws DS_CONFIG for an optimizer that needs or exchanges whole parameters. Each rank holds only
 * parts of them, and sums and directions are not exchanged over tp.
 */
export function requireElementwise(optimizer: Optimizer): void {
  if (!canSum(optimizer) && !canGather(optimizer) && !canExchange(optimizer)) return;
  throw new DsError({
    code: 'DS_CONFIG',
    op: `optimizer ${optimizer.name}`,
    expected: 'an elementwise optimizer with tensor parallelism',
    got: 'an optimizer that needs whole parameters',
    hint: 'Use AdamW, Lion or SGD, or set tensor_parallel.autotp_size to 0.',
  });
}

/**
 * Throws DS_ARGUMENT unless the parts of `ranks` contain every element of each parameter exactly
 * once.
 */
export function requireComplete(ranks: readonly (readonly NamedPart[])[]): void {
  const all = new Map<string, NamedPart[]>();
  for (const part of ranks.flat()) {
    const parts = all.get(part.name) ?? [];
    all.set(part.name, parts);
    parts.push(part);
  }
  for (const [name, parts] of all) {
    const [{ whole }] = parts as [NamedPart];
    const ranges = parts.flatMap(({ boxes }) =>
      boxes.map((box) => ({ box, from: 0, numel: numel(box.shape) })),
    );
    const flaw = findFlaw(whole, ranges);
    if (!flaw) continue;
    const element = `[${flaw.element.join(', ')}]`;
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: `initialize, ${name}`,
      expected: `parts of ${ranks.length} ranks on tp that together are [${whole.join(', ')}]`,
      got: flaw.kind === 'twice' ? `element ${element} on two ranks` : `no part with ${element}`,
      hint: 'Divide it with Parameter.partOf() by the rank on tp. Set isReplica on ranks that repeat a part.',
    });
  }
}
