// Tests sampling from any causal model: equal text with and without a decoder, and errors.
import assert from 'node:assert/strict';
import { nn } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { liveTensors, scope, seed, type Tensor } from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';

const { GPT2, generate } = nn.models;
const sizes = { vocabSize: 61, maxSeq: 20, layers: 2, heads: 2, channels: 16 };
const prompt = [3, 1, 4, 1, 5];

/** A custom model with a forward only. */
class Plain extends nn.Module {
  constructor(private readonly inner: nn.models.GPT2) {
    super();
  }

  override forward(tokens: Tensor): Tensor {
    assert.ok(!this.training);
    return this.inner.call(tokens);
  }
}

class Sums extends nn.Module {
  readonly table = new nn.Embedding(61, 4);

  override forward(tokens: Tensor): Tensor {
    return this.table.call(tokens).sum();
  }
}

function modelCase(name: string, body: (device: Device) => void): Case {
  return { name: `generate: ${name}`, run: (device) => scope(() => body(device)) };
}

export const cases: Case[] = [
  modelCase('a model without a decoder gives the same text', (device) => {
    seed(5);
    const model = new GPT2(sizes).to(device);
    for (const sampling of [{ temperature: 0 }, { topK: 9, seed: 3 }]) {
      const options = { maxNewTokens: 15, ...sampling };
      const before = liveTensors();
      const text = generate(new Plain(model), prompt, options);
      assert.equal(liveTensors(), before);
      assert.deepEqual(text, generate(model, prompt, options));
      assert.deepEqual(text, model.generate(prompt, options));
      assert.deepEqual(text.slice(0, 5), prompt);
      assert.equal(text.length, 20);
    }
    assert.ok(model.training);
  }),
  modelCase('no tokens, too many tokens, and what are no logits', (device) => {
    const model = new GPT2(sizes).to(device);
    const expectRefusal = (body: () => void, code: string, message: RegExp) =>
      assert.throws(body, (error: Error & { code?: string }) => {
        assert.equal(error.code, code);
        assert.match(error.message, message);
        return true;
      });
    const options = { maxNewTokens: 1 };
    expectRefusal(
      () => generate(model, [], options),
      'DS_ARGUMENT',
      /1 to 20 tokens .* prompt of 0/,
    );
    expectRefusal(
      () => generate(new Plain(model), [], options),
      'DS_ARGUMENT',
      /prompt of a token/,
    );
    for (const [given, message] of [
      [
        'a text',
        /prompt: expected a list of tokens.*got "a text"\. Convert text to tokens with encode\(\)/,
      ],
      [[3, '4'], /prompt: .* got "4" at 1/],
      [[3.5], /prompt: .* got 3\.5 at 0/],
      [[-1], /prompt: .* got -1 at 0/],
      [null, /prompt: .* got null/],
    ] as const) {
      expectRefusal(
        () => generate(model, given as unknown as number[], options),
        'DS_ARGUMENT',
        message,
      );
    }
    for (const temperature of ['1', [], true] as unknown as number[]) {
      const asked = { ...options, temperature };
      expectRefusal(
        () => generate(model, prompt, asked),
        'DS_ARGUMENT',
        /a temperature of 0 or more/,
      );
    }
    assert.deepEqual(
      generate(model, Int32Array.from(prompt) as never, options).slice(0, 5),
      prompt,
    );
    const tokens = prompt as unknown as Tensor;
    expectRefusal(() => model.call(tokens), 'DS_ARGUMENT', /GPT2: expected a tensor, got an array/);
    const sums = new Sums().to(device);
    expectRefusal(
      () => generate(sums, prompt, options),
      'DS_SHAPE',
      /logits \[1, T, V\].*\[\] f32/,
    );
    assert.ok(sums.training);
  }),
];
