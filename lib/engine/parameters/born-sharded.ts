// zero.Init: checks that a new model has no parameter values yet.
import { DsError } from '../../errors.js';
import type { Module } from '../../nn/module.js';
import { requireModule } from '../../nn/require-module.js';
import { valueError } from '../../runtime/input-errors.js';

/**
 * Returns the model of `build` after checking that its parameters have no values yet. initialize()
 * draws them one parameter at a time into the shards, so no rank ever holds the whole model. All
 * models of this library work this way; this function is the check, under DeepSpeed's name. Throws
 * DS_ARGUMENT if a parameter was read, converted or loaded. Source: deepspeed.zero.Init.
 */
export function init<Model extends Module>(build: () => Model): Model {
  if (typeof build !== 'function') {
    const hint = 'Write zero.Init(() => new Model()). The configuration sets where weights are.';
    throw valueError('zero.Init', 'a function that makes a model', build, hint);
  }
  const model = build();
  if (model instanceof Promise) throw promisedError();
  requireModule('zero.Init', model);
  for (const [name, parameter] of model.namedParameters()) {
    if (!parameter.isMaterialized) continue;
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: 'zero.Init',
      expected: 'a model with unused parameters',
      got: `values of ${name} in memory`,
      hint: 'Load or change weights after initialize(): engine.loadCheckpoint(), zero.GatheredParameters.',
    });
  }
  return model;
}

/**
 * Returns the error of a promise: it resolves to a model with loaded values, so init() has no
 * effect.
 */
const promisedError = (): DsError =>
  new DsError({
    code: 'DS_ARGUMENT',
    op: 'zero.Init',
    expected: 'a function that makes a model',
    got: 'a function that returns a promise',
    hint: 'Await nn.models.fromPretrained(dir) without zero.Init: initialize() divides its weights into shards.',
  });
