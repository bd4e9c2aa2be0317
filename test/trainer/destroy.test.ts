// Tests that destroy() frees all resources of a Trainer, even if a part of it fails.
import { data, nn, Tensor, Trainer, type TrainerOptions } from '../../lib/index.js';
import { samples, tinyModel, type Window } from './tiny.js';

type Options = Partial<TrainerOptions<Window>>;

function trainer(options: Options): Trainer<Window> {
  return new Trainer<Window>({
    model: tinyModel(),
    train: samples(10),
    device: 'cpu',
    progress: false,
    lr: 3e-3,
    batchSize: 2,
    epochs: 1,
    stopSignals: [],
    ...options,
  });
}

/** Whether signal handlers are removed and the engine is gone after the end of `trainer`. */
async function isAllFreed(trainer: Trainer<Window>): Promise<boolean> {
  const before = process.listenerCount('SIGUSR2');
  await trainer.train().then(undefined, () => {});
  expect(process.listenerCount('SIGUSR2')).toBe(before + 1);
  const engine = await trainer.engine();
  await trainer.destroy().catch(() => {});
  expect(() => engine.step()).toThrow('destroy');
  return process.listenerCount('SIGUSR2') === before;
}

test('destroy() frees everything if the evaluation data could not be opened', async () => {
  const data = () => Promise.reject(new Error('no such data'));
  const one = trainer({ eval: { data, every: 2 }, stopSignals: ['SIGUSR2'] });
  expect(await isAllFreed(one)).toBe(true);
  const other = trainer({ eval: { data } });
  await expect(other.evaluate()).rejects.toThrow('no such data');
  await other.destroy(); // A Trainer that never started has nothing to close.
});

test('destroy() frees everything even if the data cannot be closed, and reports it', async () => {
  const own = (why: string) => () => {
    const loader = new data.DataLoader(samples(4), { batchSize: 2 });
    loader.close = () => Promise.reject(new Error(why));
    return loader;
  };
  const close = jest.fn();
  const monitor = { write: () => {}, flush: async () => {}, close };
  const options: Options = { train: own('first'), report: [monitor], stopSignals: ['SIGUSR2'] };
  expect(await isAllFreed(trainer(options))).toBe(true);
  expect(close).toHaveBeenCalledTimes(1);
  const other = trainer(options);
  await other.engine();
  await expect(other.destroy()).rejects.toThrow('first');
});

test('evaluation data that failed to open is opened again', async () => {
  let tries = 0;
  const data = async () => {
    if (++tries === 1) throw new Error('not yet');
    return samples(2);
  };
  const one = trainer({ eval: { data, every: 2 } });
  await expect(one.evaluate()).rejects.toThrow('not yet');
  expect((await one.evaluate()).loss).toBeGreaterThan(0);
  await one.evaluate();
  expect(tries).toBe(2);
  await one.destroy();
});

test('a Trainer that cannot be opened closes its data and lets go of its model', async () => {
  const close = jest.fn(async () => {});
  const own = () => Object.assign(new data.DataLoader(samples(4), { batchSize: 2 }), { close });
  const model = new nn.Linear(2, 2);
  const loss = () => Tensor.from([0]);
  const noisy = { model, loss, train: own, neftuneNoiseAlpha: 5 } as unknown as Options;
  await expect(trainer(noisy).train()).rejects.toThrow('neftuneNoiseAlpha: expected a language');
  expect(close).toHaveBeenCalledTimes(1);
  const other = trainer({ ...noisy, neftuneNoiseAlpha: undefined });
  await other.engine();
  await other.destroy();
});
