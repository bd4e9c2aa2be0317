// evaluate() and logLikelihoods() of a model on a device, against sums over its logits.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { evaluation, nn, peft, text } from '../../lib/index.js';
import { stir } from '../peft/models.js';
import type { Case } from '../support/case.js';
import { logProbabilities, TOKENIZER, writeModel } from './models.js';

type Model = nn.models.CausalLM;
const WORDS = ['The stages shard state.', 'A rank', 'Gradients are summed over all ranks.'];
const PAIRS: [string, string][] = [
  ['The stages', ' shard state'],
  ['Gradients are summed', ' over all ranks'],
];

const withAdapter = (model: Model): Model => {
  const adapted = peft.addLora(model, { r: 2, loraAlpha: 50 });
  stir(adapted);
  return adapted;
};

function caseOf(name: string, dtype: 'f32' | 'bf16', prepare: (model: Model) => Model): Case {
  return {
    name: `evaluation: ${name}`,
    async run(device) {
      const dir = mkdtempSync(join(tmpdir(), 'ds-evaluation-'));
      await writeModel(join(dir, 'model'));
      const model = prepare(await nn.models.fromPretrained(join(dir, 'model'), { dtype }));
      try {
        await compare(model.to(device), dir, dtype === 'f32' ? 1e-4 : 3e-2);
      } finally {
        for (const parameter of model.parameters()) parameter.dispose();
        model.releaseTables();
        rmSync(dir, { recursive: true });
      }
    },
  };
}

/** Compares with relative differences of at most `limit`. */
async function compare(model: Model, dir: string, limit: number): Promise<void> {
  const files = join(dir, 'rows.jsonl');
  writeFileSync(files, WORDS.map((words) => JSON.stringify({ text: words })).join('\n'));
  const tokenizer = text.Tokenizer.fromPretrained(TOKENIZER);
  const encode = (words: string) => [...tokenizer.encode(words, { addSpecialTokens: false })];
  const options = { files, tokenizer, length: 24, threads: 0 };
  const data = await text.TextDataset.open({ ...options, packing: false });
  const rows = Array.from({ length: data.length }, (_, i) => [...data.get(i).ids]);
  const losses = rows.flatMap((ids) => {
    const logs = logProbabilities(model, ids);
    return ids.slice(1).map((id, t) => -(logs[t]?.[id] as number));
  });
  const mean = losses.reduce((sum, value) => sum + value, 0) / losses.length;
  for (const packing of [false, true]) {
    const { loss, tokens } = await evaluation.evaluate(model, { ...options, packing });
    assert.equal(tokens, losses.length);
    assert.ok(Math.abs(loss / mean - 1) < limit, `${loss} and ${mean}`);
  }
  const found = await evaluation.logLikelihoods(model, PAIRS, { tokenizer });
  for (const [i, [context, continuation]] of PAIRS.entries()) {
    const before = encode(context);
    const ids = encode(context + continuation);
    const logs = logProbabilities(model, ids);
    const expected = ids
      .slice(before.length)
      .reduce((sum, id, t) => sum + (logs[before.length + t - 1]?.[id] as number), 0);
    const { logLikelihood } = found[i] as evaluation.Likelihood;
    assert.ok(Math.abs(logLikelihood / expected - 1) < limit, `${logLikelihood} and ${expected}`);
  }
}

export const cases: Case[] = [
  caseOf('in f32', 'f32', (model) => model),
  caseOf('in bf16', 'bf16', (model) => model),
  caseOf('with an adapter on 4-bit layers', 'f32', (model) => withAdapter(peft.quantize(model))),
  caseOf('in 8 bits', 'f32', (model) => {
    nn.quantizeModel(model, { bits: 8 });
    return model;
  }),
];
