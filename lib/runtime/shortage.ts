// Errors of memory shortage: the owners of memory add their usage and a fix.
import { DsError } from '../errors.js';

/** An owner's explanation of a shortage on its device. */
export interface Explanation {
  /** The owner's memory by kind: "weights 1.2 GiB, gradients ...". */
  held: string;
  /** The setting to change, with numbers. */
  hint: string;
}

/** The kind of a Device. */
type Kind = { readonly kind: 'cpu' | 'cuda' };

interface Owner {
  device: Kind;
  explain(): Explanation;
}

const owners = new Set<Owner>();

/**
 * Calls `explain` whenever an allocation on a device like `device` fails, until the returned
 * function is called.
 */
export function explainShortages(device: Kind, explain: () => Explanation): () => void {
  const owner = { device, explain };
  owners.add(owner);
  return () => owners.delete(owner);
}

/** Adds the owners' explanations to a DS_OUT_OF_MEMORY error; returns other errors unchanged. */
export function withOwners(error: unknown): unknown {
  if (!(error instanceof DsError) || error.code !== 'DS_OUT_OF_MEMORY') return error;
  const onHost = error.expected.includes('host memory');
  const reported: Explanation[] = [];
  for (const { device, explain } of owners) {
    if (onHost !== (device.kind === 'cpu')) continue;
    try {
      reported.push(explain());
    } catch {
      // An error of an explanation must not replace the error of the shortage.
    }
  }
  if (reported.length === 0) return error;
  const held = reported.map((each) => each.held).join('; ');
  const { code, op, expected, got } = error;
  const hint = reported.map((each) => each.hint).join(' ');
  const out = new DsError({ code, op, expected, got: `${got}; held: ${held}`, hint });
  out.stack = error.stack?.replace(error.message, () => out.message);
  return out;
}
