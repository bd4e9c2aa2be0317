// An engine with mostly frozen parameters, in units with and without trained ones.
import { createHash } from 'node:crypto';
import { type DsConfig, type Engine, initialize, seed } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { AdaptedBlock, Net } from './shape-models.js';
import { step } from './shape-scenarios.js';

type Zero = Exclude<NonNullable<DsConfig['zero_optimization']>, boolean>;

/** Stage 3 that gathers units on use and frees them at once. */
export const comingAndGoing: Zero = {
  stage: 3,
  stage3_prefetch_bucket_size: 0,
  stage3_max_live_parameters: 0,
  stage3_max_reuse_distance: 0,
  stage3_param_persistence_threshold: 0,
};

/**
 * Blocks train adapters in f32 next to frozen layers in bf16; with `more`, the last layer is
 * trained too.
 */
export async function frozenEngine(
  from: number,
  zero: Zero,
  { device, more = false }: { device?: Device; more?: boolean } = {},
): Promise<Engine> {
  seed(from);
  const model = new Net({ block: () => new AdaptedBlock() });
  model.first.requiresGrad_(false);
  model.last.requiresGrad_(more);
  const { engine } = await initialize({
    model,
    device,
    config: {
      train_micro_batch_size_per_gpu: 4,
      optimizer: { type: 'AdamW', params: { lr: 0.02 } },
      bf16: { enabled: true },
      zero_optimization: zero,
    },
  });
  return engine;
}

export function train(engine: Engine, steps: number): void {
  for (let index = 0; index < steps; ++index) step(engine, index);
}

/** Hash of the bits of all trained or all frozen parameters. All ranks call it. */
export function fingerprint(engine: Engine, trained: boolean): string {
  return engine.withFullWeights(() => {
    const hash = createHash('sha1');
    for (const [name, parameter] of engine.module.namedParameters()) {
      if (parameter.requiresGrad === trained) hash.update(name).update(parameter.toRaw());
    }
    return hash.digest('hex');
  });
}
