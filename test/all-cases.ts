// Every device-independent case, for the GPU runner.
import { cases as composedGradients } from './autograd/composed.cases.js';
import { cases as elementwiseGradients } from './autograd/elementwise.cases.js';
import { cases as layerGradients } from './autograd/layers.cases.js';
import { cases as leaves } from './autograd/leaves.cases.js';
import { cases as lossGradients } from './autograd/losses.cases.js';
import { cases as viewGradients } from './autograd/views.cases.js';
import { cases as deviceCheckpoints } from './checkpoint/device.cases.js';
import { cases as resumeOnRanks } from './checkpoint/resume.cases.js';
import { cases as collectives } from './comm/collectives.cases.js';
import { cases as faults } from './comm/faults.cases.js';
import { cases as uploads } from './data/upload.cases.js';
import { cases as activationMemory } from './e2e/activation-memory.cases.js';
import { cases as badInput } from './e2e/bad-input.cases.js';
import { cases as checkpointing } from './e2e/checkpointing.cases.js';
import { cases as clients } from './e2e/clients.cases.js';
import { cases as dataTypes } from './e2e/data-types.cases.js';
import { cases as failedInitialize } from './e2e/failed-initialize.cases.js';
import { cases as inputCast } from './e2e/input-cast.cases.js';
import { cases as lifetime } from './e2e/lifetime.cases.js';
import { cases as monitoring } from './e2e/monitoring.cases.js';
import { cases as offload } from './e2e/offload.cases.js';
import { cases as outOfMemory } from './e2e/out-of-memory.cases.js';
import { cases as partialOffload } from './e2e/partial-offload.cases.js';
import { cases as resume } from './e2e/resume.cases.js';
import { cases as schedule } from './e2e/schedule.cases.js';
import { cases as speculativeOffload } from './e2e/speculative-offload.cases.js';
import { cases as tutorial } from './e2e/tutorial.cases.js';
import { cases as untrainedState } from './e2e/untrained-state.cases.js';
import { cases as userBackward } from './e2e/user-backward.cases.js';
import { cases as watching } from './e2e/watching.cases.js';
import { cases as watchingRanks } from './e2e/watching-ranks.cases.js';
import { cases as trainingFaults } from './faults/training.cases.js';
import { cases as matrix } from './native/matrix/index.js';
import { cases as initialValues } from './nn/init.cases.js';
import { cases as layers } from './nn/layers.cases.js';
import { cases as losses } from './nn/losses.cases.js';
import { cases as modules } from './nn/modules.cases.js';
import { cases as optimizerGolden } from './optim/golden.cases.js';
import { cases as standaloneOptimizers } from './optim/standalone.cases.js';
import { cases as tensorwise } from './optim/tensorwise.cases.js';
import { cases as parity } from './parity/gpt2.cases.js';
import { cases as flops } from './profiler/flops.cases.js';
import { cases as watchedStep } from './profiler/watched-step.cases.js';
import type { Case } from './support/case.js';
import { cases as accuracy } from './tensor/accuracy.cases.js';
import { cases as opArguments } from './tensor/arguments.cases.js';
import { cases as checkpointSegments } from './tensor/checkpointing.cases.js';
import { cases as composed } from './tensor/composed.cases.js';
import { cases as inPlace } from './tensor/in-place.cases.js';
import { cases as printing } from './tensor/printing.cases.js';
import { cases as products } from './tensor/products.cases.js';
import { cases as segmentReplays } from './tensor/replays.cases.js';
import { cases as stridedWeights } from './tensor/strided-weights.cases.js';
import { cases as values } from './tensor/values.cases.js';
import { cases as agreement } from './zero/agreement.cases.js';
import { cases as rankDropout } from './zero/dropout.cases.js';
import { cases as zeroMemory } from './zero/memory.cases.js';
import { cases as zeroShapes } from './zero/shapes.cases.js';
import { cases as stages } from './zero/stages.cases.js';
import { cases as wholeParameters } from './zero/whole-parameters.cases.js';

export const allCases: readonly Case[] = [
  ...matrix,
  ...values,
  ...accuracy,
  ...stridedWeights,
  ...opArguments,
  ...printing,
  ...composed,
  ...products,
  ...inPlace,
  ...elementwiseGradients,
  ...composedGradients,
  ...viewGradients,
  ...leaves,
  ...layerGradients,
  ...lossGradients,
  ...modules,
  ...losses,
  ...layers,
  ...initialValues,
  ...parity,
  ...uploads,
  ...badInput,
  ...outOfMemory,
  ...untrainedState,
  ...inputCast,
  ...lifetime,
  ...failedInitialize,
  ...monitoring,
  ...offload,
  ...partialOffload,
  ...dataTypes,
  ...speculativeOffload,
  ...checkpointSegments,
  ...segmentReplays,
  ...checkpointing,
  ...activationMemory,
  ...resume,
  ...schedule,
  ...collectives,
  ...faults,
  ...flops,
  ...watchedStep,
  ...watching,
  ...watchingRanks,
  ...clients,
  ...userBackward,
  ...tutorial,
  ...agreement,
  ...stages,
  ...wholeParameters,
  ...zeroShapes,
  ...rankDropout,
  ...zeroMemory,
  ...deviceCheckpoints,
  ...resumeOnRanks,
  ...trainingFaults,
  ...optimizerGolden,
  ...standaloneOptimizers,
  ...tensorwise,
];
