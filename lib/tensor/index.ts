// The API of lib/tensor: tensors, their operations, scopes, the tape and random state.
import './methods.js';
import './format-tensor.js';

export type { CompareOp, UnaryOp } from '../runtime/kernels.generated.js';
export { backward } from './backward.js';
export {
  isBatchInvariant,
  refuseBatchInvariant,
  runBatchInvariant,
} from './batch-invariant.js';
export type { NestedNumbers } from './format-tensor.js';
export { DeferredGradients, deferGradients, setGradTarget } from './grad-sink.js';
export type { HeadExchange } from './head-exchange.js';
export * from './ops/index.js';
export {
  type DimShare,
  type ElementPart,
  getRandomState,
  inOrder,
  nextRandom,
  type RandomPoint,
  type RandomState,
  randomPoint,
  replayRandom,
  type SampleShare,
  seed,
  setRandomState,
  sharedTokens,
  sharingSamples,
  sharingTokens,
  type TokenShare,
} from './random.js';
export {
  checkpoint,
  checkpointParts,
  checkpointSequential,
  segmentsOf,
} from './recompute/index.js';
export { type RecomputableOp, recomputable, recomputed } from './recompute.js';
export { currentScope, held, passResult, Scope, scope, within } from './scope.js';
export {
  type Backward,
  beforeBackward,
  type GradFn,
  type GradSink,
  isGradEnabled,
  noGrad,
  record,
  type Saved,
  withGrad,
} from './tape.js';
export {
  type FromOptions,
  liveTensors,
  type Nested,
  Tensor,
  type TensorOptions,
  tensorsIn,
} from './tensor.js';
export { claim, disclaim, trainerOf } from './trainer.js';
