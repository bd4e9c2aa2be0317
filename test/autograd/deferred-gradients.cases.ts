// Gradients of weights that wait: nothing but their time changes, and nothing of them is left over.
import assert from 'node:assert/strict';
import { linear, linearGelu, liveTensors, randn, seed, type Tensor } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import {
  backward,
  checkpoint,
  DeferredGradients,
  deferGradients,
  held,
  recomputable,
  scope,
} from '../../lib/tensor/index.js';
import type { GradFn } from '../../lib/tensor/tape.js';
import type { Case } from '../support/case.js';

interface Weights {
  first: Tensor;
  second: Tensor;
  bias: Tensor;
}

const [ROWS, WIDTH, INNER] = [5, 7, 11];

function weightsOn(device: Device): Weights {
  seed(3);
  const leaf = (...shape: number[]): Tensor => held(() => randn(shape, { device })).requireGrad();
  return { first: leaf(INNER, WIDTH), second: leaf(WIDTH, INNER), bias: leaf(WIDTH) };
}

/** `first` is read twice, once above `second` and once below it. */
function loss({ first, second, bias }: Weights, x: Tensor): Tensor {
  const h = linear(linearGelu(x, first), second, bias);
  return linear(linearGelu(h, first), second, bias).pow(2).sum();
}

function micros(device: Device): Tensor[] {
  seed(4);
  return [0, 1].map(() => held(() => randn([ROWS, WIDTH], { device })));
}

const gradients = (weights: Weights): number[][] =>
  Object.values(weights).map(({ grad }: Tensor) => grad?.toArray() ?? []);

function release(weights: Weights, inputs: Tensor[]): void {
  for (const leaf of Object.values(weights) as Tensor[]) {
    leaf.grad?.dispose();
    leaf.dispose();
  }
  for (const input of inputs) input.dispose();
}

/** Records the events of an input that backward recomputes with an asynchronous op. */
function watchedInput(x: Tensor): { again: Tensor; events: string[] } {
  const events: string[] = [];
  const double = Object.assign(
    (input: Tensor): Tensor => {
      events.push('made at once');
      return input.mul(2);
    },
    {
      begin: (input: Tensor): (() => Tensor) => {
        events.push('begun');
        const tensor = input.mul(2);
        return () => {
          events.push('awaited');
          return tensor;
        };
      },
    },
  );
  return { again: recomputable(x.mul(2), double, x), events };
}

/**
 * The gradients of a product that reads such an input; `deferred` leaves the weight's for later.
 */
function beginBackward(
  device: Device,
  deferred: DeferredGradients | null,
): { events: string[]; dw: number[] } {
  const { first, second, bias } = weightsOn(device);
  const [x, other] = micros(device) as [Tensor, Tensor];
  x.requireGrad();
  const events = scope(() => {
    const { again, events } = watchedInput(x);
    (again.gradFn as GradFn).whenComplete = () => void events.push('gradient of the input');
    const value = linear(again, first).pow(2).sum();
    if (deferred) deferGradients(deferred, () => backward(value));
    else backward(value);
    return events;
  });
  deferred?.run();
  const dw = first.grad?.toArray() ?? [];
  x.grad?.dispose();
  release({ first, second, bias }, [x, other]);
  return { events, dw };
}

export const cases: Case[] = [
  {
    name: 'recomputation of an input starts before the gradient of the input, which then waits for it',
    run(device) {
      const before = liveTensors();
      const now = beginBackward(device, null);
      assert.deepEqual(now.events, ['begun', 'gradient of the input', 'awaited']);
      const later = beginBackward(device, new DeferredGradients());
      assert.deepEqual(later.events, ['gradient of the input', 'made at once']);
      assert.deepEqual(now.dw, later.dw);
      assert.equal(liveTensors(), before);
    },
  },
  {
    name: 'two micro-batches with deferred weight gradients give the bits of two backwards',
    run(device) {
      const before = liveTensors();
      const [at, deferred] = [weightsOn(device), weightsOn(device)];
      const inputs = micros(device);
      const calls: string[] = [];
      for (const [name, leaf] of Object.entries(deferred) as [string, Tensor][]) {
        leaf.onGradReady = () => void calls.push(name);
      }
      for (const x of inputs) scope(() => loss(at, x).backward());
      const waiting = inputs.map((x) =>
        scope(() => {
          const localDeferredGradients = new DeferredGradients();
          const value = loss(deferred, x);
          deferGradients(localDeferredGradients, () => backward(value));
          return localDeferredGradients;
        }),
      );
      // The bias has come with the backward; the products have not.
      assert.deepEqual(calls, ['bias', 'bias']);
      assert.equal(deferred.first.grad, null);
      assert.equal(deferred.second.grad, null);
      for (const localDeferredGradients of waiting) localDeferredGradients.run();
      assert.deepEqual(calls.slice(2).sort(), ['first', 'first', 'second', 'second']);
      assert.deepEqual(gradients(deferred), gradients(at));
      release(at, []);
      release(deferred, inputs);
      assert.equal(liveTensors(), before);
    },
  },
  {
    name: 'recomputed layers compute weight gradients at once',
    run(device) {
      const before = liveTensors();
      const [at, deferred] = [weightsOn(device), weightsOn(device)];
      const [x, other] = micros(device) as [Tensor, Tensor];
      scope(() => loss(at, x).backward());
      const localDeferredGradients = new DeferredGradients();
      scope(() => {
        const value = checkpoint((input) => loss(deferred, input), x);
        deferGradients(localDeferredGradients, () => backward(value));
      });
      assert.deepEqual(gradients(deferred), gradients(at));
      localDeferredGradients.run();
      assert.deepEqual(gradients(deferred), gradients(at));
      release(at, []);
      release(deferred, [x, other]);
      assert.equal(liveTensors(), before);
    },
  },
  {
    name: 'a discarded deferred gradient frees its operands and writes nothing',
    run(device) {
      const before = liveTensors();
      const weights = weightsOn(device);
      const [x, other] = micros(device) as [Tensor, Tensor];
      const localDeferredGradients = new DeferredGradients();
      scope(() => deferGradients(localDeferredGradients, () => loss(weights, x).backward()));
      assert.ok(liveTensors() > before + 5);
      localDeferredGradients.drop();
      localDeferredGradients.run();
      assert.equal(weights.first.grad, null);
      release(weights, [x, other]);
      assert.equal(liveTensors(), before);
    },
  },
];
