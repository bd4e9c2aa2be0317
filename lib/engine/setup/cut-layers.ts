// Layers that are cut over the axis tp: which models are, what that asks of their optimizer, and
// whether the parts of all ranks make up each parameter.
import { findFlaw } from '../../checkpoint/tiling.js';
import type { Distributed } from '../../comm/index.js';
import { DsError } from '../../errors.js';
import type { Module } from '../../nn/module.js';
import { canExchange } from '../../optim/exchange.js';
import { canGather, canSum, type Optimizer } from '../../optim/optimizer.js';
import { type Box, isPart } from '../../runtime/box.js';
import { numel } from '../../runtime/view.js';

/** What one rank answers for of a parameter. */
export interface NamedPart {
  name: string;
  whole: readonly number[];
  boxes: readonly Box[];
}

/** Whether ranks that differ on tp have parts of the model, and not copies of it. */
export function isCutOver({ mesh }: Distributed, module: Module): boolean {
  return mesh.size('tp') > 1 && module.parameters().some(({ region }) => isPart(region));
}

/** The parts of this rank that no other one has as well, in the order of the model. */
export function partsOf(module: Module): NamedPart[] {
  return Array.from(module.namedParameters()).flatMap(([name, { region, isReplica }]) =>
    isPart(region) && !isReplica ? [{ name, ...region }] : [],
  );
}

/**
 * Throws DS_CONFIG for an optimizer whose update looks at whole parameters, or exchanges them: a
 * rank has parts of them, and neither sums nor directions are shared over tp.
 */
export function requireElementwise(optimizer: Optimizer): void {
  if (!canSum(optimizer) && !canGather(optimizer) && !canExchange(optimizer)) return;
  throw new DsError({
    code: 'DS_CONFIG',
    op: `optimizer ${optimizer.name}`,
    expected: 'an optimizer that updates element by element, where ranks have parts of layers',
    got: 'one that looks at whole parameters, over tensor parallelism',
    hint: 'Take AdamW, Lion or SGD, or set tensor_parallel.autotp_size to 0.',
  });
}

/**
 * Throws DS_ARGUMENT unless the parts of `ranks`, by their place on tp, make up each parameter,
 * every element once.
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
    const element = `[${flaw.place.join(', ')}]`;
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: `initialize, ${name}`,
      expected: `parts of ${ranks.length} ranks on tp that make up [${whole.join(', ')}]`,
      got: flaw.kind === 'twice' ? `element ${element} on two of them` : `none with ${element}`,
      hint: 'Cut it with Parameter.partOf() by the rank on tp; where several have the same, isReplica says so.',
    });
  }
}
