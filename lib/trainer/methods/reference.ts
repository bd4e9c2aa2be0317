// Reference: computes log-probabilities of a method's reference, which is another model, or the
// trained model without its adapters.
import type { Distributed } from '../../comm/index.js';
import type { Engine } from '../../engine/engine.js';
import { initializeServed } from '../../initialize.js';
import { CausalLM } from '../../models/causal-lm.js';
import { lorasOf, withoutAdapters } from '../../peft/index.js';
import { argumentError, valueError } from '../../runtime/input-errors.js';
import { declareOption } from '../../runtime/option.js';
import { required } from '../../runtime/required.js';
import { noGrad, scope, type Tensor } from '../../tensor/index.js';
import type { Forward } from '../micro-batch.js';

/** Declares the option `reference` of the methods. */
export const REFERENCE = declareOption(readReference, 'reference model', {
  default: null,
  shown: 'the model without its [adapters](lora.md)',
  elsewhere: '`ref_model_name_or_path`',
});

function readReference(op: string, given: CausalLM): CausalLM {
  if (given instanceof CausalLM) return given;
  throw valueError(op, 'a language model of nn.models', given);
}

/** How a reference follows the trained model, as sync_ref_model in TRL. */
interface ReferenceSync {
  /** Number of updates between two moves. */
  readonly steps: number;
  /** Weight of the trained model in the new weights of the reference. */
  readonly alpha: number;
}

/** The reference of a method. */
export class Reference {
  /** Engine of the reference at ZeRO stage 3; null if each rank has the whole reference. */
  private engine: Engine | null = null;
  private isPlaced = false;
  private trained: Engine | null = null;

  /** Throws DS_ARGUMENT if the reference is the trained model itself. */
  constructor(
    private readonly method: string,
    private readonly model: CausalLM,
    private readonly reference: CausalLM | null,
    private readonly option = 'reference',
  ) {
    if (reference !== model) return;
    const hint = 'Read the model a second time, or train adapters: peft.addLora(model).';
    throw argumentError(
      `${method} ${option}`,
      'a model other than the trained model',
      'the trained model',
      hint,
    );
  }

  /**
   * Prepares another model. Converts it to the training dtype. At ZeRO stage 3, creates an engine
   * without an optimizer, which divides the frozen weights among the ranks.
   */
  async open(trained: Engine, job: Distributed): Promise<void> {
    const { reference } = this;
    this.trained = trained;
    if (!reference || this.engine) return;
    const { bf16, fp16, zero_optimization: zero } = trained.config;
    for (const parameter of reference.parameters()) parameter.requiresGrad = false;
    if (zero.stage !== 3) {
      const dtype = bf16.enabled ? 'bf16' : fp16.enabled ? 'f16' : null;
      if (dtype) reference.to(dtype);
      return;
    }
    const { offload_param: offload } = zero;
    const sharded = { stage: 3 as const, ...(offload && { offload_param: offload }) };
    const config = {
      train_micro_batch_size_per_gpu: 1,
      bf16: { enabled: bf16.enabled },
      fp16: { enabled: fp16.enabled },
      zero_optimization: sharded,
    };
    const { engine } = await initializeServed({
      model: reference,
      config,
      distributed: job,
    });
    this.engine = engine;
    engine.eval();
  }

  /** Destroys the engine. The weights return to the reference model. */
  async close(): Promise<void> {
    await this.engine?.destroy();
    this.engine = null;
  }

  /**
   * Moves the weights of the reference towards the weights of the trained model. Throws DS_ARGUMENT
   * if weights are sharded, or if the two models have different layers.
   */
  follow({ alpha }: ReferenceSync): void {
    const { reference, model, engine } = this;
    const place = `${this.method} syncRefModel`;
    if (!reference) throw argumentError(place, 'a reference model', 'none');
    if (engine) throw argumentError(place, 'ZeRO stage 2 or lower', 'stage 3');
    this.trained?.synchronize(); // An update of the weights may still run on the device.
    const trainedParameters = new Map(model.namedParameters());
    noGrad(() => {
      for (const [name, parameter] of reference.namedParameters()) {
        const trained = trainedParameters.get(name);
        if (!trained || trained.dtype !== parameter.dtype) {
          throw argumentError(place, 'a reference with the layers of the model', name);
        }
        scope(() => parameter.copy_(parameter.mul(1 - alpha).add(trained.mul(alpha))));
      }
    });
  }

  /**
   * Throws DS_ARGUMENT if the rows contain log-probabilities of the reference (`hasNumbers`) and a
   * reference model is given too.
   */
  requireOneReference(hasNumbers: boolean): void {
    if (!hasNumbers || !this.reference) return;
    const expected = 'no log-probabilities of the reference in the rows if a model is given';
    const hint = 'Leave out `reference`, or ref_chosen_logps and ref_rejected_logps.';
    throw argumentError(`${this.method} ${this.option}`, expected, 'both', hint);
  }

  /**
   * Returns the log-probabilities of targets, summed by row, without gradients. `rows`: see
   * CausalLossOptions. The result is a copy, because a later forward of an engine without gradients
   * frees the earlier result.
   */
  computeLogProbs(
    forward: Forward,
    ids: Tensor,
    targets: Tensor,
    rows: true | readonly number[] = true,
  ): Tensor {
    return noGrad(() => this.runReference(forward, ids, targets, { loss: { rows } }).clone());
  }

  /** Returns the logits [B, T, V] of another model, without gradients. */
  computeLogits(ids: Tensor, places: object): Tensor {
    return noGrad(() => required(this.getForward(ids))(ids, null, places).clone());
  }

  /**
   * Returns the forward of another model, on the device of the batch. Returns null if the reference
   * is the trained model without adapters.
   */
  private getForward({ device }: Tensor): Forward | null {
    const { reference, engine } = this;
    if (engine) return (...inputs) => engine.forward<Tensor>(...inputs);
    if (!reference) return null;
    if (!this.isPlaced) reference.to(device).eval();
    this.isPlaced = true;
    return (...inputs) => reference.call(...(inputs as [Tensor]));
  }

  private runReference(
    forward: Forward,
    ...inputs: [ids: Tensor, targets: Tensor, how: object]
  ): Tensor {
    const other = this.getForward(inputs[0]);
    if (other) return other(...inputs);
    const { model } = this;
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
    const expected =
      'a reference, a model with adapters, or rows with log-probabilities of the reference';
    throw argumentError(this.method, expected, `a ${model.constructor.name}`, hint);
  }
}
