// Every optimizer over 20 engine steps against numbers of an independent program
// (scripts/record-optimizers.py).
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { type DsConfig, type Engine, initialize, nn, Tensor } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { rawArray } from '../../lib/runtime/dtype.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { decode, encode } from '../native/matrix/numbers.js';
import type { Case } from '../support/case.js';

type Precision = 'f32' | 'bf16';
type Section = NonNullable<DsConfig['optimizer']>;

interface Recorded {
  optimizer: Section;
  /** Where the formula comes from. */
  source: string;
  /** Every parameter after the last step. */
  f32: number[][];
  /** The same with gradients rounded to bf16. */
  bf16: number[][];
}

interface Golden {
  steps: number;
  /** The element of every parameter without a gradient in any step. */
  untouched: number;
  shapes: number[][];
  groupOf: number[];
  groups: { lr: number; weightDecay: number }[];
  checkedAgainst: string | null;
  cases: Recorded[];
}

const golden: Golden = JSON.parse(
  readFileSync(join(packageRoot(), 'test/golden/optimizers.json'), 'utf8'),
);

/**
 * Relative to the largest value of the parameter. Muon multiplies matrices of 16-bit models in f16,
 * and the iteration amplifies the rounding. Each of its updates of unit scale is off by up to 2^-9.
 */
const toleranceOf = (type: string, precision: Precision): number =>
  type === 'Muon' && precision === 'bf16' ? 4e-3 : 1e-6;

/**
 * As in the recording: in [-1000, 1000] / 1024; step 0 is the initial value, steps from 1 on are
 * gradients.
 */
function hashValue(step: number, parameter: number, element: number): number {
  const { imul } = Math;
  let x = imul(step, 0x9e3779b1) + imul(parameter, 0x85ebca77) + imul(element, 0xc2b2ae3d) + 1;
  x >>>= 0;
  x = imul(x ^ (x >>> 15), 0x2c1b3c6d) >>> 0;
  x = imul(x ^ (x >>> 12), 0x297a2d39) >>> 0;
  x = (x ^ (x >>> 15)) >>> 0;
  return ((x % 2001) - 1000) / 1024;
}

function valuesOf(step: number, parameter: number): Float32Array {
  const count = (golden.shapes[parameter] as number[]).reduce((product, n) => product * n, 1);
  const values = Float32Array.from({ length: count }, (_, i) => hashValue(step, parameter, i));
  if (step > 0) values[golden.untouched] = 0;
  return values;
}

/** The sum of its factor times another tensor; the gradient of the factor is the other tensor. */
class Product extends nn.Module {
  readonly factor: nn.Parameter;

  constructor(index: number) {
    super();
    this.factor = new nn.Parameter(golden.shapes[index] as number[], ({ buffer, offset }) =>
      buffer.write(4 * offset, valuesOf(0, index)),
    );
  }

  forward(other: Tensor): Tensor {
    return this.factor.mul(other).sum();
  }
}

class Products extends nn.Module {
  readonly parts = golden.shapes.map((_, index) => new Product(index));

  forward(...others: Tensor[]): Tensor {
    const [first, ...rest] = this.parts.map((part, k) => part.call(others[k] as Tensor));
    return rest.reduce((total, sum) => total.add(sum), first as Tensor).to('f32');
  }
}

async function engineOf(optimizer: Section, precision: Precision, device: Device): Promise<Engine> {
  const model = new Products();
  const config: DsConfig = {
    train_micro_batch_size_per_gpu: 1,
    gradient_clipping: 0,
    bf16: { enabled: precision === 'bf16' },
    optimizer,
  };
  const modelParameters = golden.groups.map((settings, index) => ({
    params: model.parts.filter((_, k) => golden.groupOf[k] === index).map(({ factor }) => factor),
    ...settings,
  }));
  return (await initialize({ model, config, device, modelParameters })).engine;
}

function train(engine: Engine, precision: Precision): void {
  const { device } = engine;
  for (let step = 1; step <= golden.steps; ++step) {
    const others = golden.shapes.map((shape, k) =>
      Tensor.from(valuesOf(step, k), { shape, device, dtype: precision }).keep(),
    );
    engine.backward(engine.forward<Tensor>(...others));
    engine.step();
    for (const other of others) other.dispose();
  }
  engine.synchronize();
}

/** The master weights of every parameter, in the order of the shapes. */
function masters({ parts }: Engine): number[][] {
  const found = new Map<string, number[]>();
  for (const partition of parts.stage.partitions) {
    for (const fragment of partition.fragments) {
      const master = parts.state.lend(partition, fragment, 'master').tensor;
      found.set(fragment.entry.name, master.toArray());
      master.release();
    }
  }
  return golden.shapes.map((_, k) => found.get(`parts.${k}.factor`) as number[]);
}

async function equalsRecording(
  { optimizer, ...recorded }: Recorded,
  precision: Precision,
  device: Device,
): Promise<void> {
  const tolerance = toleranceOf(optimizer.type, precision);
  const engine = await engineOf(optimizer, precision, device);
  train(engine, precision);
  const weights = (engine.module as Products).parts.map(({ factor }) => factor.toArray());
  const cell = rawArray(precision, 1);
  masters(engine).forEach((master, k) => {
    const want = recorded[precision][k] as number[];
    assert.equal(master.length, want.length);
    const scale = Math.max(...want.map(Math.abs));
    master.forEach((got, i) => {
      const error = Math.abs(got - (want[i] as number)) / scale;
      assert.ok(error <= tolerance, `parameter ${k}[${i}]: expected ${want[i]}, got ${got}`);
      encode(cell, 0, got, precision);
      assert.equal(weights[k]?.[i], decode(cell, 0, precision), `weight ${k}[${i}]`);
    });
  });
  engine.destroy();
}

export const cases: Case[] = golden.cases.flatMap((recorded) =>
  (['f32', 'bf16'] as const).map((precision): Case => {
    const { type, params } = recorded.optimizer;
    return {
      name: `${type} ${JSON.stringify(params)} equals the recording: ${precision}`,
      run: (device) => equalsRecording(recorded, precision, device),
    };
  }),
);
