// Configurations of public models load as themselves or are refused with a reason.
import { readFileSync } from 'node:fs';
import { nn } from '../../lib/index.js';
import type { JsonObject } from '../../types/json.js';

interface PublicModels {
  /** Keys of public config.json files with small sizes. */
  configs: Record<string, JsonObject>;
  /** The class of each configuration that loads. */
  classes: Record<string, string>;
}

const { configs, classes } = JSON.parse(
  readFileSync('test/golden/public-models.json', 'utf8'),
) as PublicModels;

/** Families with the computation of another, and text parts of multimodal ones. */
const SAME: Readonly<Record<string, string>> = {
  mimo: 'qwen2',
  qwen2_vl: 'qwen2',
  qwen3_vl: 'qwen3',
};

test.each(Object.keys(configs))('%s', (name) => {
  const config = configs[name] as JsonObject;
  const expected = classes[name];
  let model: nn.models.CausalLM;
  try {
    model = nn.models.fromConfig(config);
  } catch (error) {
    expect([name, expected, (error as Error).message]).toEqual([
      name,
      undefined,
      // The key, what it may be, and its value.
      expect.stringMatching(/^(config(: \w+)+|\w+ [\w.]+): expected .+, got .+/),
    ]);
    return;
  }
  expect(model.constructor.name).toBe(expected);
  const type = model.describe().config.model_type;
  const { model_type: given } = config;
  expect([given, `${given}_text`, SAME[String(given)]]).toContain(type);
});
