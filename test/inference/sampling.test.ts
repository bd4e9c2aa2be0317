// Runs the cases of Sampler on the CPU, and tests the validation of options.
import { SequenceSampling } from '../../lib/inference/sampling.js';
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './sampling.cases.js';

testOnCpu('Sampler', cases);

test.each([
  [{ temperature: -1 }, /generate temperature: expected a finite number of at least 0, got -1/],
  [{ temperature: '1' }, /generate temperature: expected a finite number/],
  [{ temperature: 1e-60 }, /generate temperature: expected a number in the range of f32/],
  [{ topK: 1.5 }, /generate topK: expected an integer of at least 0/],
  [{ topK: -1 }, /generate topK/],
  [{ topP: 1.1 }, /generate topP: expected a finite number from 0 to 1, got 1.1/],
  [{ minP: Number.NaN }, /generate minP: expected a finite number/],
  [
    { repetitionPenalty: 0 },
    /generate repetitionPenalty: expected a finite number of at least 0.01, got 0/,
  ],
  [
    { repetitionPenalty: 1e-44 },
    /generate repetitionPenalty: expected a finite number of at least 0.01/,
  ],
  [{ presencePenalty: 1e300 }, /generate presencePenalty: expected a number in the range of f32/],
  [{ frequencyPenalty: null }, /generate frequencyPenalty: expected a finite number, got null/],
  [{ logitBias: [1] }, /generate logitBias: expected numbers by token/],
  [{ logitBias: { 9: 1 } }, /generate logitBias: expected tokens from 0 to 7, got 9/],
  [{ logitBias: { x: 1 } }, /generate logitBias: expected tokens from 0 to 7, got NaN/],
  [{ logitBias: { 1: Number.POSITIVE_INFINITY } }, /logitBias of token 1: expected a number below/],
  [{ badWords: [[]] }, /generate badWords\[0\]: expected 1 to 64 tokens/],
  [{ badWords: [[1], new Array(65).fill(1)] }, /generate badWords\[1\]: expected 1 to 64 tokens/],
  [{ badWords: ['no'] }, /badWords\[0\]: expected a list of tokens, without a tokenizer, got "no"/],
  [{ badWords: [[8]] }, /generate badWords\[0\]: expected tokens from 0 to 7, got 8/],
  [{ allowedTokens: [] }, /generate allowedTokens: expected a list of at least one token/],
  [{ allowedTokens: [0.5] }, /generate allowedTokens: expected tokens from 0 to 7, got 0.5/],
  [{ minTokens: -1 }, /generate minTokens/],
  [{ seed: -1 }, /generate seed/],
  [{ seed: 2 ** 53 }, /generate seed/],
  [{ logprobs: 9 }, /generate logprobs: expected at most the vocabulary size, 8/],
  [{ doSample: 1 }, /generate doSample: expected true or false/],
  [{ topk: 3 }, /Did you mean "topK"/],
])('options %j are refused by name', (options, message) => {
  const read = () => new SequenceSampling('generate', options as object, { vocabSize: 8 });
  expect(read).toThrow(message);
});

test("names of transformers' are taken", () => {
  const options = { top_k: 3, repetition_penalty: 1.2, do_sample: false } as object;
  const { rules } = new SequenceSampling('generate', options, { vocabSize: 8 });
  expect(rules).toMatchObject({ topK: 3, repetitionPenalty: 1.2, temperature: 0 });
});
