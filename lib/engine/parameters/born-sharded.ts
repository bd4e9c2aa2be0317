// zero.Init: builds a model of which no rank ever holds all values.
import { DsError } from '../../errors.js';
import type { Module } from '../../nn/module.js';
import { requireModule } from '../../nn/require-module.js';
import { refusedValue } from '../../runtime/refused.js';

/**
 * The model that `build` makes, after making sure that none of its parameters has values yet:
 * initialize() draws them one parameter at a time into the shards, so that no rank ever holds the
 * model. Every model of this library is built so; this is the check, under DeepSpeed's name. Throws
 * DS_ARGUMENT naming a parameter that was read, converted or loaded. Source: deepspeed.zero.Init.
 */
export function init<Model extends Module>(build: () => Model): Model {
  if (typeof build !== 'function') {
    const hint = 'Write zero.Init(() => new Model()): the configuration says where weights are.';
    throw refusedValue('zero.Init', 'a function that makes a model', build, hint);
  }
  const model = build();
  if (model instanceof Promise) throw promised();
  requireModule('zero.Init', model);
  for (const [name, parameter] of model.namedParameters()) {
    if (!parameter.isMaterialized) continue;
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: 'zero.Init',
      expected: 'a model whose parameters nobody has used yet',
      got: `values of ${name} in memory`,
      hint: 'Load or change weights after initialize(): engine.loadCheckpoint(), zero.GatheredParameters.',
    });
  }
  return model;
}

/** A model of a folder has values, and nothing to be drawn. */
const promised = (): DsError =>
  new DsError({
    code: 'DS_ARGUMENT',
    op: 'zero.Init',
    expected: 'a function that makes a model',
    got: 'one that returns a promise',
    hint: 'nn.models.fromPretrained(dir) is awaited without zero.Init: initialize() cuts what it has read into shards.',
  });
