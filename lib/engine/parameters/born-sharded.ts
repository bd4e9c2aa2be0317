// zero.Init: checks that the parameters of a new model have no values yet.
import { DsError } from '../../errors.js';
import type { Module } from '../../nn/module.js';
import { requireModule } from '../../nn/require-module.js';
import { valueError } from '../../runtime/input-errors.js';

/**
 * Builds a model with `build`, and checks that its parameters have no values yet. Returns the
 * model. initialize() later draws the values one parameter at a time into the shards, so no rank
 * ever holds the whole model. All models of this library work this way, so this function is only
 * the check, under DeepSpeed's name. Throws DS_ARGUMENT if a parameter was read, converted or
 * loaded. Source: deepspeed.zero.Init.
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
 * Returns the error for a `build` that returns a promise. The promise resolves to a model that has
 * already loaded its values.
 */
const promisedError = (): DsError =>
  new DsError({
    code: 'DS_ARGUMENT',
    op: 'zero.Init',
    expected: 'a function that makes a model',
    got: 'a function that returns a promise',
    hint: 'Await nn.models.fromPretrained(dir) without zero.Init: initialize() divides its weights into shards.',
  });
