// What a rank was given to compute, as one number: ranks that share layers out are to be given the
// same, and would otherwise mix parts of different batches unseen.
import { createHash } from 'node:crypto';
import { type Tensor, tensorsIn } from '../../tensor/index.js';

/** As many bits as an f32 holds. */
const BITS = 24;

/** Of all tensors that a step was given, in their order. */
export class InputDigest {
  private text = '';

  /** Takes note of the tensors in `values`, to which it waits. */
  add(values: unknown): void {
    const hash = createHash('sha256').update(this.text);
    for (const tensor of tensorsIn(values)) hash.update(outlineOf(tensor)).update(tensor.toRaw());
    this.text = hash.digest('hex');
  }

  /** A whole number of 24 bits; 0 where there were none. */
  get value(): number {
    return Number.parseInt(this.text.slice(0, BITS / 4) || '0', 16);
  }
}

const outlineOf = ({ dtype, shape }: Tensor): string => `${dtype} ${shape.join()} `;
