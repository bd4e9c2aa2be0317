// Finds the parameters that a GatheredParameters body has written, by fingerprints. It also
// preserves these writes when another call gathers the unit again.

import { createHash } from 'node:crypto';
import type { Parameter } from '../../nn/parameter.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { required } from '../../runtime/required.js';
import { noGrad, type Tensor, within } from '../../tensor/index.js';

/** By writable parameter: its fingerprint before the body ran. */
const fingerprints = new Map<Tensor, string>();

/** Returns a hash of the parameter's bits. */
function fingerprint(parameter: Tensor): string {
  return createHash('sha1').update(parameter.toRaw()).digest('base64');
}

/** Makes `parameters` writable. Returns a function that ends this. */
export function openForWrites(parameters: readonly Tensor[]): () => void {
  for (const parameter of parameters) {
    fingerprints.set(parameter, fingerprint(parameter));
    (parameter as Parameter).isOpen = true;
  }
  return () => {
    for (const parameter of parameters) (parameter as Parameter).isOpen = false;
  };
}

/**
 * Returns whether the body wrote `parameter`. Call it once per parameter, at the end of the body.
 */
export function takeWritten(parameter: Tensor): boolean {
  const isWritten = fingerprint(parameter) !== fingerprints.get(parameter);
  fingerprints.delete(parameter);
  return isWritten;
}

/**
 * Runs `body`, which sets `parameter` on all ranks and gathers `parameters`, all parameters of its
 * unit, again. Restores earlier writes of an open body to the other parameters. `parameter` itself
 * then counts as not written.
 */
export function keepWrites(
  parameter: Tensor,
  parameters: Iterable<Tensor>,
  body: () => void,
): void {
  const written = [...parameters].filter(
    (tensor) =>
      tensor !== parameter &&
      fingerprints.has(tensor) &&
      fingerprint(tensor) !== fingerprints.get(tensor),
  );
  const copies = written.map((tensor) => noGrad(() => within(null, () => tensor.clone())));
  try {
    body();
    for (const [i, tensor] of written.entries())
      kernels.copy({ in: required(copies[i]), out: tensor });
  } finally {
    for (const tensor of copies) tensor.dispose();
  }
  if (fingerprints.has(parameter)) fingerprints.set(parameter, fingerprint(parameter));
}
