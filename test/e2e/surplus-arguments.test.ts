// Plain JavaScript programs that give a public function more arguments than it takes.
import {
  type Engine,
  initInference,
  initialize,
  nn,
  peft,
  Tensor,
  Trainer,
} from '../../lib/index.js';
import { closest } from '../../lib/runtime/suggestion.js';

type Call = (...items: unknown[]) => unknown;

const gpt2 = (): nn.models.GPT2 =>
  new nn.models.GPT2({ vocabSize: 8, maxSeq: 4, layers: 1, heads: 2, channels: 8 });
const config = {
  train_micro_batch_size_per_gpu: 1,
  optimizer: { type: 'AdamW', params: { lr: 1e-3 } },
} as const;

async function expectRefusal(call: () => unknown, message: RegExp): Promise<void> {
  const error = await Promise.resolve()
    .then(call)
    .catch((failure: unknown) => failure);
  expect(error).toMatchObject({ code: 'DS_ARGUMENT', message: expect.stringMatching(message) });
}

test('initialize() and an engine refuse them', async () => {
  const model = new nn.Linear(2, 1);
  await expectRefusal(
    () => (initialize as Call)({ model }, config),
    /^initialize: expected no further argument, got .* into one object: \{ model, config \}/,
  );
  const { engine } = await initialize({ model, config, device: 'cpu' });
  const x = Tensor.from(new Float32Array(2), { shape: [1, 2] });
  const calls = engine as unknown as Record<keyof Engine, Call>;
  const loss = engine.forward<Tensor>(x).mean();
  await expectRefusal(() => calls.backward(loss, true), /^engine.backward: .* got true/);
  engine.backward(loss);
  await expectRefusal(() => calls.step({}, 1), /^engine.step: .* got 1/);
  engine.step(undefined);
  engine.destroy();
});

test('adapters, a Trainer and an inference engine refuse them', async () => {
  await expectRefusal(
    () => (peft.addLora as Call)(gpt2(), {}, 'default'),
    /peft.addAdapter\(\) adds adapters with names/,
  );
  const adapted = peft.addLora(gpt2());
  await expectRefusal(() => (peft.merge as Call)(adapted, ['default']), /^merge: /);
  await expectRefusal(() => (peft.saveAdapter as Call)(adapted, 'folder', true), /^saveAdapter: /);
  await expectRefusal(() => (peft.loadAdapter as Call)(gpt2(), 'folder', {}, 1), /^loadAdapter: /);
  const trainer = new Trainer({ model: gpt2(), device: 'cpu', stopSignals: [] });
  await expectRefusal(() => (trainer.save as Call)('folder', {}), /^Trainer save: /);
  await expectRefusal(() => (trainer.evaluate as Call)(undefined, 1), /^Trainer evaluate: /);
  await expectRefusal(() => (trainer.train as Call)({}, 1), /^Trainer train: /);
  await trainer.destroy();
  await expectRefusal(() => (initInference as Call)(gpt2(), {}, {}, 1), /^initInference: /);
  const engine = await initInference(gpt2(), { device: 'cpu' });
  await expectRefusal(
    () => (engine.generate as Call)({ prompt: [1] }, 5),
    /^generate: .* the request/,
  );
  await expectRefusal(() => (engine.stream as Call)({ prompt: [1] }, 5), /^stream: /);
  await engine.destroy();
});

test('an argument one position too early gives one error', () => {
  expect(closest('modle', ['config', 'model'])).toBe('model');
  expect(closest('sede', ['seed', 'size'])).toBe('seed');
});
