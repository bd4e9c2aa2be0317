// The API of lib/evaluation: loss, metrics and log-likelihoods of models on files of rows.
export {
  type Answer,
  type ChoiceEvaluation,
  type ChoiceOptions,
  evaluateChoices,
} from './choices.js';
export { type Evaluation, type EvaluationOptions, evaluate } from './evaluate.js';
export { evaluateTask, type TaskEvaluation, type TaskEvaluationOptions } from './evaluate-task.js';
export type { EvaluatedOptions } from './evaluated-model.js';
export {
  type Likelihood,
  type LikelihoodOptions,
  logLikelihoods,
} from './log-likelihoods.js';
