// The reference of a method: another model, the model without its adapters, or numbers in the rows.
import { CausalLM } from '../../models/causal-lm.js';
import { lorasOf, withoutAdapters } from '../../peft/index.js';
import { checked } from '../../runtime/option.js';
import { refused, refusedValue } from '../../runtime/refused.js';
import { required } from '../../runtime/required.js';
import { noGrad, type Tensor } from '../../tensor/index.js';
import type { Forward } from '../micro-batch.js';

/** Declares the option `reference`. */
export const REFERENCE = checked(readReference, 'model to stay near', {
  default: null,
  shown: 'the model without its [adapters](lora.md)',
});

function readReference(op: string, given: CausalLM): CausalLM {
  if (given instanceof CausalLM) return given;
  throw refusedValue(op, 'a language model of nn.models', given);
}

/** Computes log-probabilities by the reference. */
export class Reference {
  private isPlaced = false;

  /** Throws DS_ARGUMENT if the reference is the trained model. */
  constructor(
    private readonly method: string,
    private readonly model: CausalLM,
    private readonly reference: CausalLM | null,
    option = 'reference',
  ) {
    if (reference !== model) return;
    const hint = 'Read the model a second time, or train adapters: peft.addLora(model).';
    throw refused(`${method} ${option}`, 'another model', 'the trained one', hint);
  }

  /** Throws DS_ARGUMENT if rows with numbers of the reference come beside a model. */
  requireOne(hasNumbers: boolean): void {
    if (!hasNumbers || !this.reference) return;
    const expected = 'no numbers of the reference in the rows beside a model';
    const hint = 'Leave out `reference`, or ref_chosen_logps and ref_rejected_logps.';
    throw refused(`${this.method} reference`, expected, 'both', hint);
  }

  /**
   * The log-probabilities of targets by row, without gradients, see CausalLossOptions.rows. The
   * result is a copy: forwards of the engine without gradients free earlier results.
   */
  logProbs(
    forward: Forward,
    ids: Tensor,
    targets: Tensor,
    rows: true | readonly number[] = true,
  ): Tensor {
    return noGrad(() => this.run(forward, ids, targets, { loss: { rows } }).clone());
  }

  /** The logits of another model [B, T, V], without gradients. */
  outputs(ids: Tensor, places: object): Tensor {
    return noGrad(() => required(this.placed(ids)).call(ids, null, places));
  }

  /** The other model on the device of the batch; null without one. */
  private placed({ device }: Tensor): CausalLM | null {
    if (!this.isPlaced) this.reference?.to(device).eval();
    this.isPlaced = true;
    return this.reference;
  }

  private run(forward: Forward, ...inputs: [ids: Tensor, targets: Tensor, how: object]): Tensor {
    const { model } = this;
    const reference = this.placed(inputs[0]);
    if (reference) return reference.call(...inputs);
    if (lorasOf(model).size > 0) {
      const { training } = model;
      model.eval();
      try {
        return withoutAdapters(model, () => forward(...inputs));
      } finally {
        model.train(training);
      }
    }
    const hint =
      'Give `reference: await nn.models.fromPretrained(dir)`, or train adapters: peft.addLora(model).';
    const expected = 'a reference, a model with adapters, or rows with numbers of the reference';
    throw refused(this.method, expected, `a ${model.constructor.name}`, hint);
  }
}
