// Recorded heads: the folders of golden values, and their inputs as tensors.
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { type DsConfig, type Engine, nn, Tensor } from '../../lib/index.js';
import { cpu, type Device } from '../../lib/runtime/device.js';
import { packageRoot } from '../../lib/runtime/package-root.js';

const root = join(packageRoot(), 'test', 'golden', 'transformers', 'encoders');

/** A family and its task. */
export interface HeadRow {
  name: string;
  dir: string;
  task: nn.models.HeadTask;
}

/** All recorded heads; a new family needs no line here. */
export const HEADS: readonly HeadRow[] = readdirSync(root)
  .filter((family) => family !== 'tokenizers')
  .flatMap((family) =>
    readdirSync(join(root, family)).map((task) => ({
      name: `${family} ${task}`,
      dir: join(root, family, task),
      task: task as nn.models.HeadTask,
    })),
  );

export const TOKENIZERS = join(root, 'tokenizers');

/** transformers' names of inputs, and lists of numbers. */
export type Lists = Record<string, unknown[]>;

/** golden.json of a head. */
export interface HeadGolden {
  inputs: Lists;
  left?: Lists;
  labels?: Lists;
  loss?: number;
  problems?: Record<nn.models.ProblemType, { labels: number[] | number[][]; loss: number }>;
  adamw: {
    lr: number;
    beta1: number;
    beta2: number;
    eps: number;
    weightDecay: number;
    clip: number;
  };
  batches: Lists[];
  losses: number[];
}

export const headGolden = ({ dir }: HeadRow): HeadGolden =>
  JSON.parse(readFileSync(join(dir, 'golden.json'), 'utf8'));

const NAMES: Readonly<Record<string, keyof nn.models.TaskInputs>> = {
  attention_mask: 'mask',
  token_type_ids: 'types',
  labels: 'labels',
  start_positions: 'starts',
  end_positions: 'ends',
};

/** A tensor of a list, or of rows. */
export function tensorOf(list: unknown[], device: Device): Tensor {
  const shape = Array.isArray(list[0]) ? [list.length, list[0].length] : [list.length];
  return Tensor.from(Int32Array.from(list.flat() as number[]), { shape, device });
}

/** The arguments of forward(). */
export function inputsOf(lists: Lists, device: Device): [Tensor, nn.models.TaskInputs] {
  const { input_ids: ids, ...others } = lists;
  const inputs = Object.entries(others).map(([name, list]) => [
    NAMES[name],
    tensorOf(list, device),
  ]);
  return [tensorOf(ids as unknown[], device), Object.fromEntries(inputs)];
}

/** Frees the arguments. */
export function releaseInputs([ids, inputs]: [Tensor, nn.models.TaskInputs]): void {
  ids.dispose();
  for (const one of Object.values(inputs)) if (one instanceof Tensor) one.dispose();
}

/** One head of sequences and one of tokens of each family. */
export const MATRIX: readonly HeadRow[] = HEADS.filter(({ task }) =>
  ['sequence-classification', 'masked-lm'].includes(task),
);

export const headModel = (
  { dir, task }: HeadRow,
  options: nn.models.TaskPretrainedOptions = {},
): Promise<nn.models.TaskModel> => nn.models.fromPretrained(dir, { ...options, task });

/** A configuration for the recorded batches. */
export const trainingConfig = (more: Partial<DsConfig> = {}): DsConfig => ({
  train_micro_batch_size_per_gpu: 3,
  gradient_clipping: 1,
  optimizer: { type: 'AdamW', params: { lr: 1e-3 } },
  ...more,
});

/** The losses of the recorded batches `from` to `to`. */
export function stepsOfHead(engine: Engine, row: HeadRow, from = 0, to = 3): number[] {
  return headGolden(row)
    .batches.slice(from, to)
    .map((lists) => {
      const tensors = inputsOf(lists, cpu());
      const loss = engine.forward<Tensor>(...tensors);
      const value = loss.item();
      engine.backward(loss);
      engine.step();
      releaseInputs(tensors);
      return value;
    });
}
