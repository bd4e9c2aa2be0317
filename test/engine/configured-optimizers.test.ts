// Tests that each optimizer and schedule of the configuration gets the params of its section.
import { resolveConfig } from '../../lib/config/index.js';
import schema from '../../lib/config/schema.json';
import { findOptimizer } from '../../lib/engine/setup/optimizer.js';
import { buildSchedules } from '../../lib/engine/setup/schedule.js';
import { type DsConfig, nn, optim, seed } from '../../lib/index.js';
import { thrownBy } from '../support/refusal.js';

const typesOf = (section: string): string[] =>
  JSON.stringify(schema.properties[section as 'optimizer'])
    .split('"const":"')
    .slice(1)
    .map((rest) => rest.slice(0, rest.indexOf('"')));

function optimizerOf(type: string, params: object = {}, more: DsConfig = {}) {
  seed(1);
  const module = new nn.Linear(4, 4);
  const optimizer = { type, params: { lr: 0.01, ...params } } as DsConfig['optimizer'];
  const config = resolveConfig({ train_batch_size: 1, optimizer, ...more }, { worldSize: 1 });
  const job = { mesh: { size: () => 1 } } as never;
  return findOptimizer({ module, config, clients: {}, job, planned: null }, null);
}

// muP is not supported.
const types = typesOf('optimizer').filter((type) => !type.startsWith('Mu') || type === 'Muon');

test('there are optimizers', () => {
  expect(types.length).toBeGreaterThan(15);
});

test.each(types)('%s is built', (type) => {
  const made = optimizerOf(type);
  expect(made.groups.flatMap(({ params }) => params)).toHaveLength(2);
  for (const { lr } of made.groups) expect(lr).toBe(0.01);
});

test('params have the names of options', () => {
  expect(optimizerOf('Adam', { adam_w_mode: false, weight_decay: 0.2 }).groups[0]).toMatchObject({
    weightDecay: 0.2,
  });
  expect(optimizerOf('Lamb', { max_coeff: 7 })).toMatchObject({ groups: [{ maxCoeff: 7 }] });
  const muon = optimizerOf('Muon', { muon_lr: 0.5, adam_lr: 0.25 });
  expect(muon.groups.map(({ lr }) => lr).sort()).toEqual([0.25, 0.5]);
  expect(optimizerOf('Adagrad', { lr_decay: 0.5 })).toMatchObject({ groups: [{ lrDecay: 0.5 }] });
});

test('bf16_optimizer_states reach Adam', () => {
  const state = (bf16: object) =>
    optimizerOf('Adam', {}, { bf16: { enabled: true, ...bf16 } }).declareState(0, [4]);
  expect(Object.values(state({})).map(({ dtype }) => dtype)).toEqual(['f32', 'f32']);
  const narrow = Object.values(state({ bf16_optimizer_states: true }));
  expect(narrow.map(({ dtype }) => dtype)).toEqual(['bf16', 'bf16']);
});

test('bf16_optimizer_states refuse an optimizer of the caller with wide state', () => {
  const given = (bf16: object, fp32OptimizerStates: boolean) => {
    const module = new nn.Linear(4, 4);
    const optimizer = new optim.AdamW(module.parameters(), { lr: 0.01, fp32OptimizerStates });
    const section = { bf16: { enabled: true, ...bf16 } };
    const config = resolveConfig({ train_batch_size: 1, ...section }, { worldSize: 1 });
    const job = { mesh: { size: () => 1 } } as never;
    return findOptimizer({ module, config, clients: { optimizer }, job, planned: null }, null);
  };
  const narrow = { bf16_optimizer_states: true };
  expect(given(narrow, false).groups).toHaveLength(1);
  expect(given({}, true).groups).toHaveLength(1);
  expect(thrownBy(() => given(narrow, true))).toMatchObject({
    ...{ code: 'DS_CONFIG', op: 'bf16.bf16_optimizer_states', got: 'AdamW with exp_avg in f32' },
    hint: expect.stringContaining('fp32OptimizerStates: false'),
  });
});

test.each(typesOf('scheduler'))('the schedule %s is built', (type) => {
  const needed = { total_num_steps: 10, T_max: 5, T_0: 5, step_size: 3, gamma: 0.5 };
  const needs = { milestones: [2, 4], cycle_min_lr: 0.1, cycle_max_lr: 0.2, ...needed };
  const known = Object.entries(needs).filter(([key]) => paramsOf(type).includes(key));
  const scheduler = { type, params: Object.fromEntries(known) } as DsConfig['scheduler'];
  const resolved = resolveConfig({ train_batch_size: 1, scheduler }, { worldSize: 1 });
  const groups = new optim.AdamW(new nn.Linear(2, 2).parameters(), { lr: 0.01 }).groups;
  expect(buildSchedules(resolved.scheduler, groups).name).toBe(type);
});

/** The params of a schedule type in the schema. */
function paramsOf(type: string): string[] {
  const text = JSON.stringify(schema.properties.scheduler);
  const from = text.indexOf('#/$defs/', text.indexOf(`"const":"${type}"`)) + '#/$defs/'.length;
  const name = text.slice(from, text.indexOf('"', from)) as keyof typeof schema.$defs;
  return Object.keys((schema.$defs[name] as { properties: object }).properties);
}
