// Tests the values of `--auto`, which fill "auto" in a configuration.
import { parseAuto } from '../../lib/launch/auto-option.js';

test('--auto accepts numbers and switches by the names of this library and of a Trainer', () => {
  expect(parseAuto('learning_rate=1e-5, fp16=true, bf16=false, hidden-size=64')).toEqual({
    model: { hiddenSize: 64 },
    training: { lr: 1e-5, fp16: true, bf16: false },
  });
});

test.each([
  ['beta1=0.8', [0.8, 0.999]],
  ['adam_beta2=0.95', [0.9, 0.95]],
  ['beta1=0.8,beta2=0.95', [0.8, 0.95]],
])('%s: betas %j', (text, betas) => {
  expect(parseAuto(text)).toMatchObject({ training: { betas } });
});

test.each([
  ['fp16=1', '--auto fp16: expected true or false, got "1"'],
  ['fp16', '--auto fp16: expected true or false, got nothing'],
  ['lr=fast', '--auto lr: expected a number, got "fast"'],
  ['lr=', '--auto lr: expected a number, got nothing'],
  ['speed=1', '--auto: expected one of lr, '],
])('%s is refused', (text, message) => {
  expect(() => parseAuto(text)).toThrow(message);
});
