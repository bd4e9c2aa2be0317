// Tests the model arguments of `ds train`: which modules get adapters, and the weight of router
// losses.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { nn, seed } from '../../lib/index.js';
import { readArguments } from '../../lib/trainer/command/read-arguments.js';
import { openModel } from '../../lib/trainer/command/trained-model.js';

const SIZES = {
  vocabSize: 32,
  layers: 1,
  heads: 2,
  kvHeads: 1,
  channels: 16,
  hidden: 32,
  maxSeq: 16,
};

let dir: string;
beforeAll(async () => {
  dir = mkdtempSync(join(tmpdir(), 'ds-opened-'));
  seed(1);
  await nn.saveWeights(new nn.models.Llama(SIZES), join(dir, 'dense'), { format: 'hf' });
  const moe = { experts: 2, perToken: 1 };
  await nn.saveWeights(new nn.models.Mixtral({ ...SIZES, moe }), join(dir, 'mixture'), {
    format: 'hf',
  });
});
afterAll(() => rmSync(dir, { recursive: true }));

async function openNamed(model: string, line: string): Promise<nn.models.CausalLM> {
  const words = ['--model', join(dir, model), ...line.split(' ')];
  return openModel((await readArguments(words)).args);
}

/** Names of the modules with adapters, without their layer. */
const adaptedNames = (model: nn.models.CausalLM): string[] =>
  [...model.namedParameters()].flatMap(
    ([name]) => name.match(/layers\.0\.(?:self_attn|mlp)\.(\w+)\.lora_A/)?.[1] ?? [],
  );

test.each([
  ['--lora --target_modules q_proj', ['q_proj']],
  ['--lora --target_modules self_attn.k_proj', ['k_proj']],
  ['--lora --target_modules .*\\.(up|down)_proj', ['up_proj', 'down_proj']],
  ['--lora --target_modules all-linear --exclude_modules down_proj', 6],
])('%s', async (line, names) => {
  const found = adaptedNames(await openNamed('dense', line));
  if (typeof names === 'number') expect(found).toHaveLength(names);
  else expect(found).toEqual(names);
});

test('the error of a pattern without a match explains how names are matched', async () => {
  await expect(openNamed('dense', '--lora --target_modules q_proj|k_proj')).rejects.toThrow(
    /modules with full names that match q_proj\|k_proj, got no such .*A list matches the ends of names/,
  );
});

test('the weight of the routers reaches a model with experts, and is refused by one without', async () => {
  for (const line of ['--router_aux_loss_coef 0.25', '--bf16']) {
    const { config } = (await openNamed('mixture', line)) as nn.models.Mixtral;
    expect(config.routerAuxLossCoef).toBe(line === '--bf16' ? 0 : 0.25);
  }
  await expect(openNamed('dense', '--router_aux_loss_coef 0.25')).rejects.toThrow(
    /^--router_aux_loss_coef: expected a model with experts, got .*dense/,
  );
});
