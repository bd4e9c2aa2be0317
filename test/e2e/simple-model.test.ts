// DeepSpeed's SimpleModel in fp16: f32 data, a linear layer of f16, and MSELoss of both dtypes.
import { initialize, nn, seed, Tensor } from '../../lib/index.js';

class SimpleModel extends nn.Module {
  readonly linear = new nn.Linear(10, 10);
  readonly loss = new nn.MSELoss();

  override forward(x: Tensor, y: Tensor): Tensor {
    return this.loss.call(this.linear.call(x), y);
  }
}

const config = {
  train_micro_batch_size_per_gpu: 4,
  optimizer: { type: 'Adam', params: { lr: 0.01 } },
  fp16: { enabled: true, initial_scale_power: 8 },
} as const;

const data = (salt: number): Tensor =>
  Tensor.from(
    Float32Array.from({ length: 40 }, (_, i) => Math.sin(i * 0.7 + salt)),
    { shape: [4, 10] },
  );

test('fp16 outputs and f32 targets train with MSELoss', async () => {
  seed(1);
  const { engine } = await initialize({ model: new SimpleModel(), config, device: 'cpu' });
  const [x, y] = [data(0).to('f16'), data(1)];
  const losses: number[] = [];
  for (let i = 0; i < 10; ++i) {
    const loss = engine.forward<Tensor>(x, y);
    expect(loss.dtype).toBe('f32');
    engine.backward(loss);
    engine.step();
    losses.push(loss.item());
  }
  expect(losses.at(-1)).toBeLessThan((losses[0] as number) / 2);
  engine.destroy();
});

test('f32 inputs of an fp16 layer are refused with the fix', async () => {
  const { engine } = await initialize({ model: new SimpleModel(), config, device: 'cpu' });
  expect(() => engine.forward(data(0), data(1))).toThrow(
    expect.objectContaining({
      code: 'DS_DTYPE',
      message: expect.stringMatching(/f16.*f32|f32.*f16/),
    }),
  );
  engine.destroy();
});
