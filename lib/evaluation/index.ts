// Public API of lib/evaluation: loss and log-likelihoods of language models on files of rows.
export {
  type Answer,
  type ChoiceEvaluation,
  type ChoiceOptions,
  evaluateChoices,
} from './choices.js';
export { type Evaluation, type EvaluationOptions, evaluate } from './evaluate.js';
export type { EvaluatedOptions } from './evaluated-model.js';
export {
  type Likelihood,
  type LikelihoodOptions,
  logLikelihoods,
} from './log-likelihoods.js';
