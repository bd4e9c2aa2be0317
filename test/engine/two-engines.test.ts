// Two engines in one training loop.
import { initialize, nn, Tensor } from '../../lib/index.js';

const config = {
  train_micro_batch_size_per_gpu: 2,
  optimizer: { type: 'Adam', params: { lr: 1e-3 } },
} as const;

test('a GAN that updates the generator first must zero the gradients of the discriminator', async () => {
  const [netG, netD] = [new nn.Linear(4, 4), new nn.Linear(4, 1)];
  const { engine: g } = await initialize({ model: netG, config, device: 'cpu' });
  const { engine: d } = await initialize({ model: netD, config, device: 'cpu' });
  const noise = Tensor.from(new Float32Array(8).fill(0.3), { shape: [2, 4] });
  const fake = g.forward<Tensor>(noise);
  g.backward(d.forward<Tensor>(fake).square().mean());
  g.step();
  const loss = (): Tensor => d.forward<Tensor>(fake.detach()).square().mean();
  expect(() => d.backward(loss())).toThrow(/as in a GAN, drop them: engine\.zeroGrad\(\)/);
  d.zeroGrad();
  d.backward(loss());
  d.step();
  expect(d.globalSteps).toBe(1);
  for (const engine of [g, d]) engine.destroy();
  noise.dispose();
});
