// Tests the output of console.log, String, JSON and Number for tensors and models.
import assert from 'node:assert/strict';
import { inspect } from 'node:util';
import { DsError } from '../../lib/errors.js';
import * as nn from '../../lib/nn/index.js';
import type { Device } from '../../lib/runtime/device.js';
import * as ops from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';

const { Tensor } = ops;

function printingCase(name: string, body: (device: Device) => void): Case {
  return {
    name: `printing: ${name}`,
    run(device) {
      const before = ops.liveTensors();
      ops.scope(() => body(device));
      assert.equal(ops.liveTensors(), before, 'live tensors');
    },
  };
}

const lines = (value: unknown): string[] => inspect(value).split('\n');
const range = (device: Device, ...shape: number[]): ops.Tensor =>
  ops
    .arange(
      shape.reduce((n, size) => n * size, 1),
      { device },
    )
    .reshape(shape);

class Block extends nn.Module {
  readonly up = new nn.Linear(4, 8);
  readonly down = new nn.Linear(8, 4, { bias: false });
  readonly mask = ops.zeros([4], { dtype: 'i32' }).keep();

  override forward(x: ops.Tensor): ops.Tensor {
    return this.down.call(this.up.call(x).relu());
  }
}

class Model extends nn.Module {
  readonly embed = new nn.Embedding(10, 4);
  readonly blocks = [new Block(), new Block(), new Block()];
  readonly head = new nn.Linear(4, 10, { bias: false });

  constructor() {
    super();
    this.head.weight.dispose();
    (this.head as { weight: nn.Parameter }).weight = this.embed.weight;
  }

  override forward(x: ops.Tensor): ops.Tensor {
    return this.head.call(this.blocks.reduce((y, block) => block.call(y), this.embed.call(x)));
  }
}

export const cases: Case[] = [
  printingCase('dtype, shape, device and values of small tensors', (device) => {
    const { name } = device;
    const from = (data: ops.Nested, dtype: 'f32' | 'bf16' | 'bool' | 'i64' | 'f64' = 'f32') =>
      Tensor.from(data, { device, dtype });
    assert.deepEqual(lines(from(3.5)), [`Tensor([] f32, ${name}) 3.5000`]);
    assert.deepEqual(lines(from([1, -20, 3])), [`Tensor([3] f32, ${name}) [  1, -20,   3]`]);
    assert.deepEqual(
      lines(
        from(
          [
            [0.5, 1],
            [-2, 10.25],
          ],
          'bf16',
        ),
      ),
      [`Tensor([2, 2] bf16, ${name})`, '[[ 0.5000,  1.0000],', ' [-2.0000, 10.2500]]'],
    );
    assert.deepEqual(lines(from([true, false], 'bool')), [
      `Tensor([2] bool, ${name}) [ true, false]`,
    ]);
    assert.deepEqual(lines(from([2n ** 53n + 1n], 'i64')), [
      `Tensor([1] i64, ${name}) [9007199254740993]`,
    ]);
    assert.deepEqual(lines(Tensor.from(Int32Array.of(2 ** 31 - 1, -1), { device })), [
      `Tensor([2] i32, ${name}) [2147483647,         -1]`,
    ]);
    assert.deepEqual(lines(from([1e-7, 1, Number.NaN])), [
      `Tensor([3] f32, ${name}) [1.0000e-7, 1.0000e+0,       nan]`,
    ]);
    assert.deepEqual(lines(from([Number.NEGATIVE_INFINITY, 1.5])), [
      `Tensor([2] f32, ${name}) [  -inf, 1.5000]`,
    ]);
    assert.deepEqual(lines(ops.zeros([0, 3], { device })), [`Tensor([0, 3] f32, ${name}) []`]);
    assert.deepEqual(lines(range(device, 2, 1, 2)).slice(1), ['[[[0, 1]],', '', ' [[2, 3]]]']);
  }),
  printingCase('a large tensor shows its corners, a view its own values', (device) => {
    const x = range(device, 1001);
    assert.equal(
      inspect(x),
      `Tensor([1001] f32, ${device.name}) [   0,    1,    2, ...,  998,  999, 1000]`,
    );
    const turned = range(device, 50, 30).transpose();
    assert.deepEqual(lines(turned), [
      `Tensor([30, 50] f32, ${device.name})`,
      '[[   0,   30,   60, ..., 1410, 1440, 1470],',
      ' [   1,   31,   61, ..., 1411, 1441, 1471],',
      ' [   2,   32,   62, ..., 1412, 1442, 1472],',
      ' ...,',
      ' [  27,   57,   87, ..., 1437, 1467, 1497],',
      ' [  28,   58,   88, ..., 1438, 1468, 1498],',
      ' [  29,   59,   89, ..., 1439, 1469, 1499]]',
    ]);
    const row = ops.ones([1], { device }).expand([5, 300]);
    assert.equal(lines(row)[1], '[[1, 1, 1, ..., 1, 1, 1],');
    assert.ok(lines(range(device, 100)).every(({ length }) => length <= 80));
  }),
  printingCase('graph, nesting and release are told', (device) => {
    const { name } = device;
    const x = Tensor.from([1, 2], { device }).requireGrad();
    assert.equal(inspect(x), `Tensor([2] f32, ${name}, requiresGrad) [1, 2]`);
    const y = x.mul(2);
    assert.equal(`${y}`, `Tensor([2] f32, ${name}, from scale) [2, 4]`);
    assert.equal(inspect({ y }, { depth: 0 }), `{ y: Tensor([2] f32, ${name}, from scale) }`);
    y.dispose();
    assert.equal(inspect(y), 'Tensor([2] f32, released)');
    assert.equal(String(y), 'Tensor([2] f32, released)');
  }),
  printingCase('JSON, lists and numbers', (device) => {
    const x = range(device, 2, 3).add(0.5);
    assert.deepEqual(x.toList(), [
      [0.5, 1.5, 2.5],
      [3.5, 4.5, 5.5],
    ]);
    assert.equal(JSON.stringify({ x: x.transpose() }), '{"x":[[0.5,3.5],[1.5,4.5],[2.5,5.5]]}');
    const back = Tensor.from(JSON.parse(JSON.stringify(x)), { device });
    assert.deepEqual(back.toList(), x.toList());
    assert.equal(Tensor.from(7, { device }).toList(), 7);
    assert.deepEqual(ops.zeros([2, 0], { device }).toList(), [[], []]);
    const tensor = Tensor.from([2.5], { device });
    assert.equal(Number(tensor), 2.5);
    assert.equal((tensor as unknown as number) * 2, 5);
    assert.ok((tensor as unknown as number) < 3);
    assert.throws(
      () => Number(x),
      (error: unknown) =>
        error instanceof DsError && /item.*\[2, 3\].*mean\(\)/.test(error.message),
    );
    x.dispose();
    assert.throws(() => JSON.stringify(x), /released/);
  }),
  printingCase('models are trees', () => {
    const model = new Model();
    assert.deepEqual(lines(model), [
      'Model: 256 parameters',
      '  embed: Embedding, weight [10, 4] f32: 40',
      '  blocks.0 to blocks.2: 3 x Block, buffer mask [4] i32: 72 each',
      '    up: Linear, weight [8, 4] f32, bias [8] f32: 40',
      '    down: Linear, weight [4, 8] f32: 32',
      '  head: Linear, weight tied to embed.weight',
    ]);
    assert.equal(inspect({ a: [model] }, { depth: 0 }), '{ a: [Array] }');
    assert.equal(inspect([model], { depth: 0 }), '[ [Model] ]');
    assert.ok(model.parameters().every(({ isMaterialized }) => !isMaterialized));
    model.blocks[1]?.down.weight.requireGrad(false);
    assert.deepEqual(lines(model).slice(0, 3), [
      'Model: 256 parameters, 224 of them trained',
      '  embed: Embedding, weight [10, 4] f32: 40',
      '  blocks.0: Block, buffer mask [4] i32: 72',
    ]);
    assert.equal(String(new nn.ReLU()), 'ReLU: 0 parameters');
    assert.match(inspect(model.head.weight), /^Tensor\(\[10, 4\] f32, cpu, requiresGrad\)\n\[\[/);
    for (const tensor of Object.values(model.stateDict())) tensor.dispose();
  }),
];
