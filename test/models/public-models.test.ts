// Configurations of public models load as themselves or are refused with a reason.
import { readFileSync } from 'node:fs';
import { nn } from '../../lib/index.js';
import type { JsonObject } from '../../types/json.js';

interface PublicModels {
  /** Keys of public config.json files with small sizes. */
  configs: Record<string, JsonObject>;
  /** The class of each configuration that has to load. */
  classes: Record<string, string>;
}

const { configs, classes } = JSON.parse(
  readFileSync('test/golden/public-models.json', 'utf8'),
) as PublicModels;

/** The names of a family in config.json, also those of multimodal folders around it. */
interface Names {
  modelType: string;
  alsoTypes?: readonly string[];
  textOf?: readonly string[];
}

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
  if (expected !== undefined) expect(model.constructor.name).toBe(expected);
  const { family } = model.constructor as unknown as { family: Names };
  const { modelType, alsoTypes = [], textOf = [] } = family;
  expect(model.describe().config.model_type).toBe(modelType);
  expect([modelType, ...alsoTypes, ...textOf]).toContain(config.model_type);
});

test('docs/models.md states how many of them load', () => {
  const page = readFileSync('docs/models.md', 'utf8');
  const [, all, loading] = /Of (\d+) public configurations, (\d+) load/.exec(page) ?? [];
  const expected = [Object.keys(configs).length, Object.keys(classes).length];
  expect([Number(all), Number(loading)]).toEqual(expected);
});
