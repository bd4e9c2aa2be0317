// Tests backward hooks: their arguments, time and effect, and that they hold no tensors.
import assert from 'node:assert/strict';
import { DsError } from '../../lib/errors.js';
import * as nn from '../../lib/nn/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { checkpoint, liveTensors, noGrad, scope, seed, Tensor } from '../../lib/tensor/index.js';
import { assertClose } from '../autograd/check.js';
import type { Case } from '../support/case.js';

/** Modules to dispose of after the case. */
const modules: nn.Module[] = [];

function hookCase(name: string, body: (device: Device) => void): Case {
  return {
    name: `backward hooks: ${name}`,
    run(device) {
      const before = liveTensors();
      scope(() => body(device));
      for (const module of modules.splice(0))
        for (const each of module.parameters()) each.dispose();
      assert.equal(liveTensors(), before, 'live tensors');
    },
  };
}

const refuses = (code: string, message: RegExp, body: () => unknown): void =>
  assert.throws(
    body,
    (error: unknown) =>
      error instanceof DsError && error.code === code && message.test(error.message),
  );

const toValues = (grads: nn.Gradients): (number[] | null)[] =>
  grads.map((grad) => grad?.toArray() ?? null);

/** A layer with fixed weights, and an input. */
function makeLayer(device: Device): { layer: nn.Linear; x: Tensor } {
  seed(4);
  const layer = new nn.Linear(3, 2, { bias: false }).to(device);
  modules.push(layer);
  const weight = Tensor.from([1, 2, 3, 4, 5, 6], { shape: [2, 3], device });
  layer.loadStateDict({ weight });
  const x = Tensor.from([1, 0, -1, 2, 1, 0], { shape: [2, 3], device }).requireGrad();
  return { layer, x };
}

/** Two inputs and a flag in, a list out. */
class Pair extends nn.Module {
  override forward(a: Tensor, factor: number, b: Tensor): [Tensor, null, Tensor] {
    return [a.mul(factor), null, a.mul(b)];
  }
}

class Named extends nn.Module {
  override forward(x: Tensor): { x: Tensor } {
    return { x };
  }
}

const seen = hookCase('gradients of inputs and outputs, in PyTorch’s order', (device) => {
  const { layer, x } = makeLayer(device);
  const reported: unknown[] = [];
  layer.registerFullBackwardHook((module, gradInput, gradOutput) => {
    assert.equal(module, layer);
    reported.push(['full', toValues(gradInput), toValues(gradOutput), layer.weight.grad !== null]);
  });
  layer.registerFullBackwardPreHook(
    (_, gradOutput) => void reported.push(['pre', toValues(gradOutput)]),
  );
  const tensor = Tensor.from([1, 0, 0, 2], { shape: [2, 2], device });
  layer.call(x).mul(tensor).sum().backward();
  const gradOutput = [[1, 0, 0, 2]];
  assert.deepEqual(reported, [
    ['pre', gradOutput],
    ['full', [[1, 2, 3, 8, 10, 12]], gradOutput, true],
  ]);
  assert.deepEqual(x.grad?.toArray(), [1, 2, 3, 8, 10, 12]);
  assert.deepEqual(layer.weight.grad?.toArray(), [1, 0, -1, 4, 2, 0]);
  layer.zeroGrad();
});

const places = hookCase('places of inputs and outputs; one tensor passed twice', (device) => {
  const reported: unknown[] = [];
  const pair = new Pair();
  pair.registerFullBackwardHook((_, gradInput, gradOutput) => {
    reported.push(
      [gradInput, gradOutput].map((grads) => grads.map((grad) => grad?.item() ?? null)),
    );
  });
  const [a, b] = [3, 5].map((value) => Tensor.from([value], { device }).requireGrad());
  const [first, , second] = pair.call(a as Tensor, 2, b as Tensor);
  first.add(second.mul(10)).sum().backward();
  pair
    .call(a as Tensor, 2, a as Tensor)[2]
    .sum()
    .backward();
  pair
    .call(a as Tensor, 2, (b as Tensor).detach())[0]
    .sum()
    .backward();
  assert.deepEqual(reported, [
    [
      [52, null, 30],
      [1, null, 10],
    ],
    [
      [6, null, null],
      [null, null, 1],
    ],
    [
      [2, null, null],
      [1, null, null],
    ],
  ]);
  const attention = new nn.MultiheadAttention(4, 2).to(device);
  modules.push(attention);
  const states = Tensor.from(new Array(12).fill(1), { shape: [3, 1, 4], device }).requireGrad();
  const shapes: unknown[] = [];
  attention.registerFullBackwardHook((_, gradInput) => {
    shapes.push(gradInput.map((grad) => grad?.shape.join() ?? null));
  });
  attention.call(states, states, states, { isCausal: true })[0].sum().backward();
  assert.deepEqual(shapes, [['3,1,4', null, null, null]]);
  attention.zeroGrad();
});

const changes = hookCase('what they return goes on', (device) => {
  const { layer, x } = makeLayer(device);
  const remove = [
    layer.registerFullBackwardPreHook((_, [grad]) => [(grad as Tensor).mul(2)]),
    layer.registerFullBackwardHook((_, [grad]) => [(grad as Tensor).add(1)]),
    layer.registerFullBackwardHook((_, [grad]) => [(grad as Tensor).mul(10)]),
  ];
  layer.call(x).sum().backward();
  assert.deepEqual(x.grad?.toArray(), [110, 150, 190, 110, 150, 190]);
  assert.deepEqual(layer.weight.grad?.toArray(), [6, 2, -2, 6, 2, -2]);
  for (const each of remove) each();
  x.grad = null;
  layer.zeroGrad();
  layer.registerFullBackwardHook(() => [null]);
  layer.call(x).sum().backward();
  assert.equal(x.grad, null);
  assert.deepEqual(layer.weight.grad?.toArray(), [3, 1, -1, 3, 1, -1]);
  layer.zeroGrad();
});

const without = hookCase(
  'no gradient for the inputs, none recorded, none that arrives',
  (device) => {
    const { layer, x } = makeLayer(device);
    const calls: unknown[] = [];
    layer.registerFullBackwardHook((_, gradInput, gradOutput) => {
      calls.push([gradInput, toValues(gradOutput)]);
    });
    layer.call(x.detach()).sum().backward();
    assert.deepEqual(calls, [[[null], [[1, 1, 1, 1]]]]);
    calls.length = 0;
    noGrad(() => layer.call(x));
    layer.call(x);
    x.mul(2).sum().backward();
    assert.equal(calls.length, 0);
    const stopped = new (class extends nn.Module {
      override forward(input: Tensor): Tensor {
        return layer.weight.sum().add(input.detach().sum());
      }
    })();
    stopped.registerFullBackwardHook(() => assert.fail('no gradient reaches its input'));
    stopped.call(x).backward();
    layer.zeroGrad();
  },
);

const replayed = hookCase('once where the module is computed again', (device) => {
  const { layer, x } = makeLayer(device);
  const reported: unknown[] = [];
  layer.registerFullBackwardHook((_, gradInput) => void reported.push(toValues(gradInput)));
  checkpoint((y: Tensor) => layer.call(y), x)
    .sum()
    .backward();
  assert.equal(reported.length, 1);
  assertClose((reported[0] as number[][])[0] as number[], [5, 7, 9, 5, 7, 9], 1e-6, 'gradient');
  layer.zeroGrad();
});

const mistakes = hookCase('wrong results are refused by name', (device) => {
  const { layer, x } = makeLayer(device);
  const expectFailure = (message: RegExp, hook: () => unknown): void => {
    const remove = layer.registerFullBackwardHook(hook as nn.FullBackwardHook);
    const out = layer.call(x).sum();
    refuses('DS_ARGUMENT', message, () => out.backward());
    remove();
    layer.zeroGrad();
  };
  expectFailure(/Linear backward hook.*list of 1/s, () => x.detach());
  expectFailure(/list of 1.*2 gradients/s, () => [null, null]);
  expectFailure(/\[0\].*\[2, 3\] f32.*\[6\] f32/s, () => [x.detach().reshape([6])]);
  expectFailure(/\[0\].*\[2, 3\] f32/s, () => [3]);
  const named = new Named();
  named.registerFullBackwardPreHook(() => {});
  refuses('DS_ARGUMENT', /Named with backward hooks/, () => named.call(x));
});

export const cases: Case[] = [seen, places, changes, without, replayed, mistakes];
