// Modules, parameters and GPT-2: names, state, laziness, hooks, sizes, sampling.
import assert from 'node:assert/strict';
import { DsError } from '../../lib/errors.js';
import * as nn from '../../lib/nn.js';
import type { Device } from '../../lib/runtime/device.js';
import {
  checkpoint,
  liveTensors,
  noGrad,
  scope,
  seed,
  Tensor,
  zeros,
} from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';

class Mlp extends nn.Module {
  readonly layers = [new nn.Linear(4, 8), new nn.Linear(8, 2)];
  readonly norm = new nn.LayerNorm(4);
  readonly offset = zeros([4]).keep();

  override forward(x: Tensor): Tensor {
    const [first, second] = this.layers as [nn.Linear, nn.Linear];
    return second.call(first.call(this.norm.call(x)).relu());
  }
}

const small = { vocabSize: 61, maxSeq: 20, layers: 2, heads: 2, channels: 16 };

function nnCase(name: string, body: (device: Device) => void): Case {
  return { name: `nn: ${name}`, run: (device) => scope(() => body(device)) };
}

function throwsCode(code: string, body: () => unknown): void {
  assert.throws(body, (error: unknown) => error instanceof DsError && error.code === code);
}

const published: [string, number][] = [
  ['124M', 124_439_808],
  ['355M', 354_823_168],
  ['774M', 774_030_080],
  ['1558M', 1_557_611_200],
];

const at = ({ weight }: nn.Linear, row: number, column: number): number =>
  weight.toArray()[row * 2 + column] as number;

export const cases: Case[] = [
  nnCase('parameters in an array belong to the module, and are no units', () => {
    class Scales extends nn.Module {
      readonly scales = [2, 3].map((n) => new nn.Parameter([n], nn.init.ones));
      readonly numbers = [1, 2];
      override forward(x: Tensor): Tensor {
        return x;
      }
    }
    const model = new Scales();
    assert.deepEqual(Object.keys(model.stateDict()), ['scales.0', 'scales.1']);
    assert.equal(model.numParameters(), 5);
    assert.deepEqual(model.units(), []);
  }),
  nnCase('names, units and modes', () => {
    const model = new Mlp();
    assert.deepEqual(
      [...model.namedParameters()].map(([name]) => name),
      [
        'layers.0.weight',
        'layers.0.bias',
        'layers.1.weight',
        'layers.1.bias',
        'norm.weight',
        'norm.bias',
      ],
    );
    assert.deepEqual(
      [...model.namedBuffers()].map(([name]) => name),
      ['offset'],
    );
    assert.deepEqual(
      model.units().map(({ name }) => name),
      ['layers.0', 'layers.1'],
    );
    assert.equal(model.eval().norm.training, false);
    const list = new nn.Sequential(new nn.Linear(2, 3), new nn.ReLU(), new nn.Linear(3, 1));
    assert.deepEqual(
      [...list.namedParameters()].map(([name]) => name),
      ['0.weight', '0.bias', '2.weight', '2.bias'],
    );
  }),
  nnCase(
    'parameters have no memory until they are used, and then the same values anywhere',
    (device) => {
      seed(11);
      const lazy = new nn.Linear(5, 3).weight;
      seed(11);
      const eager = new nn.Linear(5, 3).weight;
      const values = eager.toArray();
      assert.equal(lazy.isMaterialized, false);
      const out = Tensor.empty([3, 5], 'f32', device);
      lazy.writeInitial(out);
      assert.equal(lazy.isMaterialized, false);
      assert.deepEqual(out.toArray(), values);
      lazy.place(out);
      assert.deepEqual(lazy.toArray(), values);
      assert.equal(lazy.device, device);
    },
  ),
  nnCase('children, modules and apply: each once, children first', () => {
    const model = new Mlp();
    assert.deepEqual(
      [...model.namedChildren()].map(([name]) => name),
      ['layers.0', 'layers.1', 'norm'],
    );
    assert.deepEqual(model.children(), [...model.layers, model.norm]);
    const shared = new nn.Sequential(model.norm, new nn.Sequential(model.norm));
    assert.equal(shared.modules().length, 3);
    const seen: string[] = [];
    assert.equal(
      model.apply((module) => seen.push(module.constructor.name)),
      model,
    );
    assert.deepEqual(seen, ['Linear', 'Linear', 'LayerNorm', 'Mlp']);
    assert.deepEqual(model.buffers(), [model.offset]);
  }),
  nnCase('freezing, counting what is trained, dropping gradients', (device) => {
    const model = new Mlp().to(device);
    model.norm.requiresGrad_(false);
    assert.deepEqual(
      [{}, { trainable: true }, { trainable: false }].map((which) => model.numParameters(which)),
      [66, 58, 8],
    );
    model
      .call(zeros([3, 4], { device }))
      .sum()
      .backward();
    assert.equal(model.norm.weight.grad, null);
    const before = model.layers[0]?.weight.grad as Tensor;
    model.zeroGrad();
    assert.ok(before.isDisposed);
    assert.ok(model.parameters().every(({ grad }) => grad === null));
    assert.equal(model.requiresGrad_().numParameters({ trainable: false }), 0);
    throwsCode('DS_ARGUMENT', () => model.numParameters({ train: true } as never));
  }),
  nnCase('state dicts', (device) => {
    const [a, b] = [new Mlp().to(device), new Mlp()];
    b.loadStateDict(a.stateDict());
    for (const [name, value] of Object.entries(a.stateDict())) {
      assert.deepEqual(b.stateDict()[name]?.toArray(), value.toArray(), name);
    }
    throwsCode('DS_CHECKPOINT', () => b.loadStateDict({}));
    throwsCode('DS_CHECKPOINT', () => b.loadStateDict({ ...a.stateDict(), extra: zeros([1]) }));
    throwsCode('DS_CHECKPOINT', () => b.loadStateDict({ ...a.stateDict(), offset: zeros([5]) }));
    b.loadStateDict({ extra: zeros([1]) }, { strict: false });
  }),
  nnCase('hooks run around forward and can be removed', () => {
    const layer = new nn.Tanh();
    const seen: string[] = [];
    const removers = [
      layer.registerForwardPreHook(() => seen.push('before')),
      layer.registerForwardHook(() => seen.push('after')),
    ];
    layer.call(zeros([1]));
    for (const remove of removers) remove();
    layer.call(zeros([1]));
    assert.deepEqual(seen, ['before', 'after']);
  }),
  nnCase('what hooks return goes on: inputs before a forward, the output behind it', () => {
    const layer = new nn.Linear(2, 2, { bias: false });
    const x = Tensor.from([[1, 2]]).requireGrad();
    const plain = layer.call(x).toArray();
    const removers = [
      layer.registerForwardPreHook((_, [given]) => (given as Tensor).mul(2)),
      layer.registerForwardPreHook((_, items) => [(items[0] as Tensor).mul(5)]),
      layer.registerForwardHook((_, __, output) => (output as Tensor).add(1)),
      layer.registerForwardHook((_, inputs, output) => {
        assert.deepEqual((inputs[0] as Tensor).toArray(), [10, 20]);
        return (output as Tensor).mul(3);
      }),
    ];
    const out = layer.call(x);
    const expected = plain.map((value) => (value * 10 + 1) * 3);
    out.toArray().forEach((value, i) => {
      assert.ok(Math.abs(value - (expected[i] as number)) < 1e-4);
    });
    out.sum().backward();
    const columns = [0, 1].map((i) => 30 * [0, 1].reduce((sum, o) => sum + at(layer, o, i), 0));
    (x.grad as Tensor).toArray().forEach((value, i) => {
      assert.ok(Math.abs(value - (columns[i] as number)) < 1e-4);
    });
    for (const remove of removers) remove();
    assert.deepEqual(layer.call(x).toArray(), plain);
    let shapes: unknown;
    const noting = [
      layer.registerForwardPreHook(
        (_, items) => (shapes = items.map((item) => (item as Tensor).shape)),
      ),
      layer.registerForwardHook((_, __, output) => (shapes = [shapes, (output as Tensor).shape])),
    ];
    assert.deepEqual(layer.call(x).toArray(), plain);
    assert.deepEqual(shapes, [[[1, 2]], [1, 2]]);
    for (const remove of noting) remove();
  }),
  nnCase('GPT-2 has the published numbers of parameters', () => {
    for (const [name, count] of published) {
      const model = new nn.models.GPT2(nn.models.GPT2.config(name));
      assert.equal(model.numParameters(), count, name);
      assert.deepEqual([...model.tiedNames()], [['lm_head.weight', 'transformer.wte.weight']]);
    }
    throwsCode('DS_ARGUMENT', () => nn.models.GPT2.config('125M'));
    const model = new nn.models.GPT2(small);
    const layouts = nn.models.gpt2HuggingFaceNames(model);
    const transposed = [...layouts].filter(([, to]) => to.transposed).map(([name]) => name);
    assert.equal(transposed.length, 4 * small.layers);
    assert.equal(layouts.size, 12 * small.layers + 4);
  }),
  nnCase('GPT-2 starts from its initialisation', () => {
    seed(1);
    const { transformer } = new nn.models.GPT2({ ...small, channels: 64, layers: 8 });
    const rootMeanSquare = (p: Tensor): number => p.square().mean().sqrt().item();
    const near = (p: Tensor, stddev: number) =>
      assert.ok(Math.abs(rootMeanSquare(p) / stddev - 1) < 0.05);
    near(transformer.wte.weight, 0.02);
    near(transformer.wpe.weight, 0.02);
    const [block] = transformer.h as [nn.models.GPT2Block];
    near(block.attn.c_attn.weight, 0.02);
    near(block.attn.c_proj.weight, 0.02 / 4);
    near(block.mlp.c_proj.weight, 0.02 / 4);
    assert.equal(rootMeanSquare(block.mlp.c_proj.bias as Tensor), 0);
    assert.equal(rootMeanSquare(block.ln_1.weight), 1);
  }),
  nnCase('cached sampling equals computing every token anew', (device) => {
    seed(2);
    const model = new nn.models.GPT2(small).to(device);
    const prompt = [3, 1, 4, 1, 5];
    const before = liveTensors();
    const cached = model.generate(prompt, { maxNewTokens: 15, temperature: 0 });
    assert.equal(liveTensors(), before);
    const plain = [...prompt];
    while (plain.length < 20) {
      plain.push(
        noGrad(() =>
          scope(() => {
            const tokens = Tensor.from(Int32Array.from(plain), {
              shape: [1, plain.length],
              device,
            });
            return model.call(tokens).select(1, -1).argmax().item();
          }),
        ),
      );
    }
    assert.deepEqual(cached, plain);
    const sampled = model.generate(prompt, { maxNewTokens: 5, topK: 10, seed: 4 });
    assert.deepEqual(model.generate(prompt, { maxNewTokens: 5, topK: 10, seed: 4 }), sampled);
    assert.ok(model.training);
    throwsCode('DS_ARGUMENT', () => model.generate(prompt, { maxNewTokens: 16 }));
    throwsCode('DS_SHAPE', () =>
      model.call(Tensor.from(new Int32Array(21), { shape: [1, 21], device })),
    );
  }),
  nnCase('checkpoint keeps fewer bytes and frees what it computes again', (device) => {
    seed(3);
    const layers = Array.from({ length: 6 }, () => new nn.Linear(64, 64).to(device));
    const x = zeros([256, 64], { device }).requireGrad();
    const segment = (i: number) => (y: Tensor) =>
      (layers[i] as nn.Linear).call(y).gelu().tanh().mul(y);
    const heldBytes = (checkpointed: boolean): number => {
      const before = device.memory.inUse;
      const out = scope(() => {
        let y = x;
        for (let i = 0; i < 6; ++i) y = checkpointed ? checkpoint(segment(i), y) : segment(i)(y);
        return y.sum();
      });
      const bytes = device.memory.inUse - before;
      out.backward();
      for (const leaf of [x, ...layers.flatMap((layer) => layer.parameters())]) {
        leaf.grad?.release();
        leaf.grad = null;
      }
      out.dispose();
      assert.equal(device.memory.inUse, before);
      return bytes;
    };
    const [plain, sparse] = [heldBytes(false), heldBytes(true)];
    assert.ok(sparse < 0.4 * plain, `${sparse} bytes against ${plain}`);
  }),
];
