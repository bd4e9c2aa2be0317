// The tiny models of all families that the golden values have, and batches for them.
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { type DsConfig, nn, Tensor } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { packageRoot } from '../../lib/runtime/package-root.js';

const root = join(packageRoot(), 'test', 'golden', 'transformers', 'models');

/** The environment may name the families to test, as in DS_FAMILIES=glm,phi. Default: all. */
const chosen = process.env.DS_FAMILIES?.split(',') ?? null;

/** Names of folders; a family may have several. */
export const FAMILIES: readonly string[] = readdirSync(root).filter(
  (name) => name !== 'ropes' && (chosen?.includes(name) ?? true),
);

export const folderOf = (family: string): string => join(root, family);

/** The model, without a loss of its routers, which pipelines refuse. */
export function familyModel(
  family: string,
  options: nn.models.PretrainedOptions = {},
): Promise<nn.models.CausalLM> {
  const text = readFileSync(join(folderOf(family), 'config.json'), 'utf8');
  const { output_router_logits: hasLoss } = JSON.parse(text) as { output_router_logits?: boolean };
  const own = hasLoss ? { routerAuxLossCoef: 0 } : {};
  return nn.models.fromPretrained(folderOf(family), { ...own, ...options });
}

const [ROWS, TOKENS] = [2, 12];

/** Tokens and targets of step `index`. */
export function batchOf(vocabulary: number, index: number, device: Device): [Tensor, Tensor] {
  const draw = (salt: number): Tensor => {
    const one = (_: unknown, i: number) =>
      3 + ((index * 31 + i * 17 + salt * 7) % (vocabulary - 3));
    const values = Int32Array.from({ length: ROWS * TOKENS }, one);
    return Tensor.from(values, { shape: [ROWS, TOKENS], device });
  };
  return [draw(1), draw(2)];
}

/** A configuration for these batches. */
export const trainingConfig = (more: Partial<DsConfig> = {}): DsConfig => ({
  train_micro_batch_size_per_gpu: ROWS,
  gradient_clipping: 1,
  optimizer: { type: 'AdamW', params: { lr: 1e-3 } },
  ...more,
});

export const STEPS = 3;
