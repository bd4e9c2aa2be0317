// What transformers says of tiny models in its own folders: logits, loss and every gradient.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { WeightFiles } from '../../lib/checkpoint/index.js';
import { nn } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { noGrad, Tensor } from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';

const folder = join(packageRoot(), 'test', 'golden', 'transformers', 'models');
const IGNORED = -100;

interface Golden {
  ids: number[][];
  /** Not shifted: the label at t is the token at t. */
  labels: number[][];
  loss: number;
}

const rowsOf = (values: number[][], device: Device): Tensor =>
  Tensor.from(Int32Array.from(values.flat()), {
    shape: [values.length, (values[0] as number[]).length],
    device,
  });

function isClose(name: string, got: readonly number[], expected: readonly number[], bound: number) {
  const largest = Math.max(...expected.map(Math.abs));
  assert.equal(got.length, expected.length, name);
  const worst = Math.max(...got.map((value, i) => Math.abs(value - (expected[i] as number))));
  assert.ok(worst <= bound * largest, `${name}: off by ${worst} of ${largest}`);
}

async function agrees(name: string, device: Device): Promise<void> {
  const dir = join(folder, name);
  const golden = JSON.parse(readFileSync(join(dir, 'golden.json'), 'utf8')) as Golden;
  const files = await WeightFiles.open(join(dir, 'golden.safetensors'));
  const read = async (tensor: string): Promise<Tensor> => files.read(tensor);
  const model = (await nn.models.fromPretrained(dir)).to(device);
  const ids = rowsOf(golden.ids, device);
  const logits = noGrad(() => model.call(ids));
  const expected = await read('logits');
  isClose('logits', logits.contiguous().toArray(), expected.toArray(), 1e-5);
  const targets = rowsOf(
    golden.labels.map((row) => [...row.slice(1), IGNORED]),
    device,
  );
  const loss = model.call(ids, targets);
  isClose('loss', [loss.item()], [golden.loss], 1e-6);
  loss.backward();
  const transposed = new Set(model.describe().transposed);
  for (const [parameter, { grad }] of model.namedParameters()) {
    const wanted = await read(`gradient.${parameter}`);
    const own = grad as Tensor;
    const laidOut = transposed.has(parameter) ? own.transpose(0, 1).contiguous() : own;
    isClose(parameter, laidOut.toArray(), wanted.toArray(), 1e-4);
    if (laidOut !== own) laidOut.dispose();
    wanted.release();
  }
  for (const tensor of [ids, targets, logits, loss, ...model.parameters()]) tensor.dispose();
  expected.release();
  await files.close();
}

export const cases: Case[] = ['gpt2', 'llama', 'llama-tied'].map((name) => ({
  name: `transformers: ${name} gives its logits, loss and gradients`,
  run: (device) => agrees(name, device),
}));
