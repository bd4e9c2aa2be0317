// The parts of packed layers are never trained, whatever their dtype.
import { initialize, nn, peft, scope, seed, Tensor } from '../../lib/index.js';
import { StoredParameter } from '../../lib/nn/packed-linear.js';

class Model extends nn.Module {
  readonly first = new nn.Linear(64, 64);
  readonly second: nn.Module;

  constructor(second: (layer: nn.Linear) => nn.Module) {
    super();
    this.second = second(new nn.Linear(64, 64));
  }

  override forward(x: Tensor): Tensor {
    const hidden = this.first.call(x).tanh();
    return (this.second.call(hidden) as Tensor).square().mean();
  }
}

const packings: [string, (layer: nn.Linear) => nn.Module][] = [
  ['8 bits', (layer) => nn.QuantizedLinear.from(layer, { bits: 8 })],
  ['4 bits in groups', (layer) => nn.QuantizedLinear.from(layer, { bits: 4, groupSize: 32 })],
  ['FP8', (layer) => nn.Fp8Linear.from(layer)],
  ['NF4', (layer) => peft.NF4Linear.from(layer, { doubleQuant: false })],
  ['NF4 with scales of 8 bits', (layer) => peft.NF4Linear.from(layer, { doubleQuant: true })],
];

describe.each(packings)('%s', (_, second) => {
  const storedParameters = (model: Model) =>
    [...model.second.namedParameters()].filter(([, one]) => one instanceof StoredParameter);

  test('has no trainable part', () => {
    seed(1);
    const parts = storedParameters(new Model(second));
    expect(parts.map(([, { dtype }]) => dtype)).toContain('f32');
    for (const [name, part] of parts) {
      expect([name, part.requiresGrad]).toEqual([name, false]);
      expect(() => part.requireGrad()).toThrow(/a parameter that can change by small steps/);
      expect([name, part.requireGrad(false).requiresGrad]).toEqual([name, false]);
    }
  });

  test('training does not change their bits', async () => {
    seed(1);
    const model = new Model(second);
    const parts = storedParameters(model);
    const valuesOf = () => parts.map(([name, part]) => [name, part.toArray()]);
    const before = valuesOf();
    const weight = model.first.weight.toArray();
    const config = {
      train_micro_batch_size_per_gpu: 2,
      optimizer: { type: 'AdamW', params: { lr: 0.1 } },
    } as const;
    const { engine } = await initialize({ model, config, device: 'cpu' });
    const x = Tensor.from(
      Float32Array.from({ length: 128 }, (_, i) => Math.sin(i)),
      { shape: [2, 64] },
    );
    for (let step = 0; step < 2; ++step) {
      const loss = engine.forward<Tensor>(x);
      engine.backward(loss);
      engine.step();
    }
    engine.destroy();
    expect(scope(valuesOf)).toEqual(before);
    expect(model.first.weight.toArray()).not.toEqual(weight);
  });
});
