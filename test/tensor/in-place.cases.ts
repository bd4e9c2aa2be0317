// Tests in-place ops: their effect, their errors, and the error of a backward with a changed saved
// tensor.
import assert from 'node:assert/strict';
import { DsError } from '../../lib/errors.js';
import { initialize, zero } from '../../lib/index.js';
import * as nn from '../../lib/nn/index.js';
import type { Device } from '../../lib/runtime/device.js';
import * as ops from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';

const { Tensor } = ops;

function inPlaceCase(name: string, body: (device: Device) => void): Case {
  return {
    name: `in place: ${name}`,
    run(device) {
      const before = ops.liveTensors();
      ops.scope(() => body(device));
      assert.equal(ops.liveTensors(), before, 'live tensors');
    },
  };
}

function refuses(code: string, text: RegExp, body: () => unknown): void {
  assert.throws(body, (error: unknown) => {
    assert.ok(error instanceof DsError, String(error));
    assert.equal(error.code, code, error.message);
    assert.match(error.message, text);
    return true;
  });
}

export const cases: Case[] = [
  inPlaceCase('the tensor itself changes, and views of it', (device) => {
    const x = Tensor.from([1, -2, 3], { device });
    const view = x.reshape(3, 1);
    const { buffer } = x;
    assert.equal(x.add_(1), x);
    assert.deepEqual(x.toArray(), [2, -1, 4]);
    assert.deepEqual(view.toArray(), [2, -1, 4]);
    const steps: [(y: ops.Tensor) => ops.Tensor, number[]][] = [
      [(y) => y.sub_(Tensor.from([1, 1, 1], { device })), [1, -2, 3]],
      [(y) => y.mul_(Tensor.from([2], { device })), [2, -4, 6]],
      [(y) => y.div_(4), [0.5, -1, 1.5]],
      [(y) => y.neg_(), [-0.5, 1, -1.5]],
      [(y) => y.relu_(), [0, 1, 0]],
      [(y) => y.exp_().sub_(1), [0, Math.fround(Math.E) - 1, 0]],
      [(y) => y.add_(4).sqrt_().clamp_({ max: 2 }), [2, 2, 2]],
      [(y) => y.maskedFill_(Tensor.from([true, false, true], { device }), -1), [-1, 2, -1]],
      [(y) => y.copy_(Tensor.from([7], { dtype: 'i32' })), [7, 7, 7]],
      [(y) => y.fill_(-3), [-3, -3, -3]],
      [(y) => y.zero_(), [0, 0, 0]],
    ];
    for (const [step, wanted] of steps) {
      assert.equal(step(x), x);
      for (const [i, value] of x.toArray().entries()) {
        assert.ok(Math.abs(value - (wanted[i] as number)) < 1e-5, `${step}: ${x.toArray()}`);
      }
    }
    assert.equal(x.buffer, buffer);
  }),
  inPlaceCase('strided targets and operands that overlap them', (device) => {
    const square = ops.arange(9, { device }).reshape(3, 3);
    square.add_(square.transpose());
    assert.deepEqual(square.toArray(), [0, 4, 8, 4, 8, 12, 8, 12, 16]);
    square.transpose().select(0, 0).mul_(2);
    assert.deepEqual(square.toArray(), [0, 4, 8, 8, 8, 12, 16, 12, 16]);
    square.slice(0, 1).copy_(square.slice(0, 0, 2));
    assert.deepEqual(square.toArray(), [0, 4, 8, 0, 4, 8, 8, 8, 12]);
    square.select(1, 1).fill_(5);
    assert.deepEqual(square.toArray(), [0, 5, 8, 0, 5, 8, 8, 5, 12]);
    const state = ops.getRandomState();
    ops.seed(5);
    const drawn = ops.randn([3, 5], { device, mean: 2, stddev: 3 });
    ops.seed(5);
    assert.deepEqual(ops.zeros([3, 5], { device }).normal_(2, 3).toArray(), drawn.toArray());
    ops.seed(5);
    const turned = ops.zeros([5, 3], { device }).transpose();
    assert.deepEqual(turned.normal_(2, 3).toArray(), drawn.toArray());
    assert.ok(
      turned
        .uniform_(4, 5)
        .toArray()
        .every((value) => value >= 4 && value < 5),
    );
    ops.setRandomState(state);
  }),
  inPlaceCase('integers keep their dtype, or it is refused', (device) => {
    const x = Tensor.from([1, 2], { device, dtype: 'i32' });
    assert.deepEqual(x.add_(3).mul_(2).toArray(), [8, 10]);
    assert.deepEqual(x.sub_(Tensor.from([true, false], { device })).toArray(), [7, 10]);
    refuses('DS_DTYPE', /add_.*\[2\] i32 can hold, got a result of f32/, () => x.add_(0.5));
    refuses('DS_DTYPE', /mul_/, () => x.mul_(Tensor.from([1, 2], { device, dtype: 'i64' })));
    refuses('DS_DTYPE', /div_.*quotient/, () => x.div_(2));
    refuses('DS_ARGUMENT', /i32/, () => x.fill_(1.5));
    refuses('DS_SHAPE', /add_.*broadcasts to \[2\]/, () =>
      x.add_(ops.zeros([3, 2], { device, dtype: 'i32' })),
    );
    refuses('DS_SHAPE', /copy_/, () => x.copy_(ops.zeros([3], { device })));
    refuses('DS_SHAPE', /without overlapping elements.*clone\(\)/, () =>
      x.reshape(2, 1).expand(2, 3).zero_(),
    );
    assert.deepEqual(x.toArray(), [7, 10]);
  }),
  inPlaceCase('the graph is not written past', (device) => {
    const leaf = Tensor.from([1, 2], { device }).requireGrad();
    const plain = Tensor.from([1, 1], { device });
    refuses('DS_AUTOGRAD', /add_.*requires a gradient.*add\(\).*noGrad/, () => leaf.add_(1));
    refuses('DS_AUTOGRAD', /mul_/, () => leaf.square().mul_(2));
    refuses('DS_AUTOGRAD', /add_.*an operand/, () => plain.add_(leaf));
    ops.noGrad(() => leaf.add_(1));
    leaf.square().sum().backward();
    assert.deepEqual(leaf.toArray(), [2, 3]);
    assert.deepEqual(leaf.grad?.toArray(), [4, 6]);
    const parameter = new nn.Parameter([2], nn.init.ones);
    ops.noGrad(() => parameter.mul_(3));
    assert.deepEqual(parameter.toArray(), [3, 3]);
    parameter.dispose();
  }),
  {
    name: 'in place: parameters of an engine are refused, because master weights would undo it',
    async run(device) {
      const model = new nn.Linear(2, 1);
      const config = {
        train_batch_size: 1,
        optimizer: { type: 'SGD', params: { lr: 0.1 } },
      } as const;
      const { engine } = await initialize({ model, config, device });
      try {
        refuses('DS_ARGUMENT', /zero_.*an engine owns.*GatheredParameters/, () =>
          ops.noGrad(() => model.weight.zero_()),
        );
        zero.GatheredParameters([model.weight], { modifierRank: 0 }, () =>
          ops.noGrad(() => model.weight.fill_(2)),
        );
        assert.deepEqual(model.weight.toArray(), [2, 2]);
      } finally {
        engine.destroy();
        for (const parameter of model.parameters()) parameter.dispose();
      }
    },
  },
  inPlaceCase('a backward refuses what was changed since its forward', (device) => {
    const leaf = Tensor.from([1, 2], { device }).requireGrad();
    const factor = Tensor.from([3, 4], { device });
    const good = leaf.mul(factor).sum();
    good.backward();
    factor.add_(1);
    leaf.mul(factor).sum().backward();
    assert.deepEqual(leaf.grad?.toArray(), [7, 9]);
    const stale = leaf.mul(factor).sum();
    factor.slice(0, 0, 1).zero_();
    refuses('DS_AUTOGRAD', /mul.*changed in place after.*clone/, () => stale.backward());
    const unread = leaf.add(factor).sum();
    factor.zero_();
    unread.backward();
    assert.deepEqual(leaf.grad?.toArray(), [8, 10]);
    const localTensor = leaf.square().sum();
    ops.noGrad(() => leaf.zero_());
    refuses('DS_AUTOGRAD', /square.*changed in place/, () => localTensor.backward());
    const segment = ops.checkpoint((x: ops.Tensor, y: ops.Tensor) => x.mul(y).sum(), leaf, factor);
    factor.add_(1);
    refuses('DS_AUTOGRAD', /checkpoint.*changed in place/, () => segment.backward());
  }),
];
