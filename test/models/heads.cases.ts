// Compares tiny encoders and heads in folders of transformers with it: outputs of padded batches,
// losses by problem type, gradients, three updates.
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { WeightFiles } from '../../lib/checkpoint/index.js';
import { initialize, nn } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { noGrad, Tensor } from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';
import {
  HEADS,
  type HeadRow,
  headGolden,
  inputsOf,
  type Lists,
  releaseInputs,
} from './head-rows.js';

type Model = nn.models.TaskModel;

function isClose(name: string, got: readonly number[], expected: readonly number[], bound: number) {
  const largest = Math.max(1e-3, ...expected.map(Math.abs));
  assert.equal(got.length, expected.length, name);
  const worst = Math.max(...got.map((value, i) => Math.abs(value - (expected[i] as number))));
  assert.ok(worst <= bound * largest, `${name}: off by ${worst} of ${largest}`);
}

const openModel = async ({ dir, task }: HeadRow, device: Device): Promise<Model> =>
  (await nn.models.fromPretrained(dir, { task })).to(device);

function release(model: Model): void {
  (model as Partial<{ releaseTables(): void }>).releaseTables?.();
  for (const parameter of model.parameters()) parameter.dispose();
}

/** Outputs of tokens, where padding counts as 0. */
function outputsOf(model: Model, lists: Lists, device: Device): number[] {
  const [ids, inputs] = inputsOf(lists, device);
  const out = noGrad(() =>
    model.task === 'embedding' ? model.hidden(ids, inputs) : model.call(ids, inputs).contiguous(),
  );
  const values = out.toArray();
  const width = out.size(-1);
  const mask = (lists.attention_mask as number[][]).flat();
  const isByToken = out.ndim === 3;
  out.dispose();
  releaseInputs([ids, inputs]);
  return values.map((value, i) => (isByToken && mask[Math.floor(i / width)] === 0 ? 0 : value));
}

async function agrees(row: HeadRow, device: Device): Promise<void> {
  const golden = headGolden(row);
  const files = await WeightFiles.open(join(row.dir, 'golden.safetensors'));
  const read = async (name: string): Promise<number[]> => {
    const tensor = await files.read(name);
    const values = tensor.toArray();
    tensor.release();
    return values;
  };
  const model = await openModel(row, device);
  isClose('outputs', outputsOf(model, golden.inputs, device), await read('outputs'), 1e-5);
  if (golden.left && !readsPadding(row, 'left')) {
    isClose('left', outputsOf(model, golden.left, device), await read('outputs.left'), 1e-5);
  }
  if (row.task === 'embedding') await pools(model, golden.inputs, read, device);
  if (golden.labels && !readsPadding(row, 'loss')) {
    const tensors = inputsOf({ ...golden.inputs, ...golden.labels }, device);
    const loss = model.call(...tensors);
    isClose('loss', [loss.item()], [golden.loss as number], 1e-5);
    const halved = model.call(tensors[0], { ...tensors[1], loss: { divisor: 2 } });
    assert.ok(halved.item() > 0);
    loss.backward();
    await gradients(model, files);
    for (const tensor of [loss, halved]) tensor.dispose();
    releaseInputs(tensors);
  }
  for (const [problem, { labels, loss }] of Object.entries(golden.problems ?? {})) {
    const [ids, inputs] = inputsOf(golden.inputs, device);
    const isWhole = problem === 'single_label_classification';
    const values = isWhole ? Int32Array.from(labels as number[]) : Float32Array.from(labels.flat());
    const shape = isWhole ? [values.length] : [labels.length, 3];
    const targets = Tensor.from(values, { shape, device });
    const localTaskModel = await nn.models.fromPretrained(row.dir, {
      task: row.task,
      problemType: problem as nn.models.ProblemType,
    });
    const found = noGrad(() => localTaskModel.to(device).call(ids, { ...inputs, labels: targets }));
    isClose(problem, [found.item()], [loss], 1e-5);
    for (const tensor of [found, targets]) tensor.dispose();
    releaseInputs([ids, inputs]);
    release(localTaskModel);
  }
  release(model);
  await files.close();
}

/**
 * Whether a recorded value depends on the output at padding that sees no token in its window: there
 * transformers' eager attention takes the mean of all values, and its other kernels do not.
 */
const readsPadding = ({ name }: HeadRow, kind: 'left' | 'loss'): boolean =>
  name ===
  (kind === 'left' ? 'modernbert sequence-classification' : 'modernbert question-answering');

/** Where transformers recorded them: of other tasks the heads alone differ. */
async function gradients(model: Model, files: WeightFiles): Promise<void> {
  if (![...files.tensors.keys()].some((name) => name.startsWith('gradient.'))) return;
  const transposed = new Set(model.describe().transposed);
  for (const [parameter, { grad }] of model.namedParameters()) {
    const names = [parameter, 'lm_head.decoder.weight'].map((name) => `gradient.${name}`);
    const expected = await files.read(names.find((name) => files.tensors.has(name)) as string);
    const localTensor = grad as Tensor;
    const laidOut = transposed.has(parameter)
      ? localTensor.transpose(0, 1).contiguous()
      : localTensor;
    isClose(parameter, laidOut.toArray(), expected.toArray(), 1e-4);
    if (laidOut !== localTensor) laidOut.dispose();
    expected.release();
  }
}

/** Every mode of pooling, and unit length. */
async function pools(
  model: Model,
  lists: Lists,
  read: (name: string) => Promise<number[]>,
  device: Device,
): Promise<void> {
  const modes = ['cls_token', 'max_tokens', 'mean_tokens', 'mean_sqrt_len_tokens'] as const;
  for (const mode of [...modes, 'weightedmean_tokens', 'lasttoken', 'normalized'] as const) {
    const isUnit = mode === 'normalized';
    model.pooling = { modes: [isUnit ? 'mean_tokens' : mode], normalize: isUnit };
    const [ids, inputs] = inputsOf(lists, device);
    const out = noGrad(() => model.call(ids, inputs).contiguous());
    isClose(mode, out.toArray(), await read(`pool.${mode}`), 1e-5);
    out.dispose();
    releaseInputs([ids, inputs]);
  }
}

/**
 * Logits of answers minus those of the first token: their loss does not depend on the bias, so
 * AdamW moves it by rounding errors.
 */
function unshiftLogits({ task }: HeadRow, values: readonly number[]): number[] {
  if (task !== 'question-answering') return [...values];
  return values.map((value, i) => (value === 0 ? 0 : value - (values[i % 2] as number)));
}

/** Three updates, and the outputs after them. */
async function trains(row: HeadRow, device: Device): Promise<void> {
  const { adamw, batches, losses } = headGolden(row);
  const { lr, beta1, beta2, eps, weightDecay, clip } = adamw;
  const params = { lr, betas: [beta1, beta2] as [number, number], eps, weight_decay: weightDecay };
  const { engine } = await initialize({
    model: await nn.models.fromPretrained(row.dir, { task: row.task }),
    config: {
      train_batch_size: batches[0]?.input_ids?.length,
      gradient_clipping: clip,
      optimizer: { type: 'AdamW', params },
    },
    device,
  });
  const found = batches.map((lists) => {
    const tensors = inputsOf(lists, device);
    const loss = engine.forward<Tensor>(...tensors);
    const value = loss.item();
    engine.backward(loss);
    engine.step();
    releaseInputs(tensors);
    return value;
  });
  isClose('losses', found, losses, 1e-5);
  engine.eval();
  const { labels, start_positions, end_positions, ...last } = batches.at(-1) as Lists;
  void [labels, start_positions, end_positions];
  const files = await WeightFiles.open(join(row.dir, 'golden.safetensors'));
  const final = await files.read('final');
  const outputs = outputsOf(engine.module as Model, last, device);
  isClose('final', unshiftLogits(row, outputs), unshiftLogits(row, final.toArray()), 2e-5);
  final.release();
  await files.close();
  engine.destroy();
  release(engine.module as Model);
}

export const cases: Case[] = HEADS.flatMap((row) => [
  {
    name: `heads: ${row.name} gives its outputs, losses and gradients`,
    run: (device: Device) => agrees(row, device),
  },
  ...(row.task === 'embedding' || readsPadding(row, 'loss')
    ? []
    : [
        {
          name: `heads: ${row.name} trains to its losses and outputs`,
          run: (device: Device) => trains(row, device),
        },
      ]),
]);
