// The training loop of a Trainer: updates, and between them logs, evaluations and checkpoints.
import type { JsonObject } from '../../types/json.js';
import type { Engine } from '../engine/engine.js';
import { DsError } from '../errors.js';
import { scope, Tensor } from '../tensor/index.js';
import {
  checkpointPath,
  requireDisk,
  retainCheckpoints,
  writeCheckpoint,
} from './checkpoint-folder.js';
import type { BatchSource } from './data-source.js';
import { compareWithBest, type Moment, shouldStopEarly } from './decisions.js';
import type { EndReason, EvaluateEvent, TrainerEvent, TrainerPlace } from './events.js';
import type { Forward, MicroBatch } from './micro-batch.js';
import { disposeMicroBatch } from './moved-batch.js';
import type { SaveSettings } from './report-options.js';
import { evaluateSession, type Session } from './session.js';
import { groupsOf } from './train-data.js';
import type { TrainerState } from './trainer-state.js';

/** Events of a part of the run, and the part's result. */
type Events<Result = void> = AsyncGenerator<TrainerEvent, Result>;

/**
 * Trains on `data` from the current state until the run ends or stops. If the caller leaves the
 * iteration (`isLeft`), the loop first completes the current update with its log, evaluation and
 * checkpoint. Returns the reason of the end; null if the caller left.
 */
export async function* runTrainingLoop<Batch>(
  session: Session<Batch>,
  data: BatchSource<Batch>,
  isLeft: () => boolean,
): Events<EndReason | null> {
  const { decisions, state, length, objective, accumulation, engine, world, settings } = session;
  const { save } = settings;
  // The first read installs the signal handlers, so signals stop the run from now on.
  void engine.stopRequested;
  const updates = { size: accumulation, seqlen: () => engine.curriculumSeqlen };
  if (decisions.isStartEvaluationDue(getProgress(state)) && !state.isEvaluated)
    yield* runEvaluation(session);
  let end = yield* runMissedEvaluation(session);
  if (state.step >= length.maxSteps) end ??= 'done';
  if (!end && save) await requireDisk({ engine, world, save, tokenizer: settings.tokenizer });
  while (!end && !isLeft()) {
    const first = state.step;
    for await (const group of groupsOf(data, objective, updates)) {
      yield* session.source?.events() ?? [];
      yield* runUpdate(session, group);
      yield { type: 'step', ...getProgress(state) };
      end = yield* finishUpdate(session, { ...getProgress(state), isEpochEnd: false });
      if (end || isLeft()) break;
    }
    if (state.step === first) throw noBatchesError();
    const { updatesPerEpoch } = length;
    if ((end || isLeft()) && !(updatesPerEpoch && isWholeEpoch(state.epoch))) break;
    state.epoch = updatesPerEpoch === null ? state.epoch + 1 : Math.round(state.epoch);
    yield { type: 'epoch', ...getProgress(state) };
    end ??= yield* finishUpdate(session, { ...getProgress(state), isEpochEnd: true });
  }
  return end;
}

/**
 * Runs an evaluation that was due at the step of the checkpoint and is missing in it. The run was
 * then stopped before this evaluation. Returns "early" if early stopping ends the run.
 */
async function* runMissedEvaluation<Batch>(session: Session<Batch>): Events<EndReason | null> {
  const { engine, settings, state, decisions, length } = session;
  if (state.step === 0 || engine.stopRequested) return null;
  const ends =
    length.updatesPerEpoch !== null && isWholeEpoch(state.epoch) ? [false, true] : [false];
  const isDue = ends.some((isEpochEnd) =>
    decisions.isEvaluationDue({ ...getProgress(state), isEpochEnd }),
  );
  if (isDue && !state.isEvaluated) {
    const { save } = settings;
    const evaluation = yield* runEvaluation(session);
    if (save && evaluation?.isBest && state.best) {
      const here = checkpointPath(save, state.step);
      if (state.checkpoint === here) state.best.checkpoint = here;
      else yield* saveCheckpoint(session, save, true);
    }
  }
  return shouldStopEarly(settings, state) ? 'early' : null;
}

/** Runs one update. Each counted target of all micro-batches and ranks has the same weight. */
async function* runUpdate<Batch>(
  session: Session<Batch>,
  group: readonly MicroBatch<Batch>[],
): Events {
  const { engine, objective, counts, mover, book, state, length, decisions, source } = session;
  const forward: Forward = (...inputs) => engine.forward<Tensor>(...inputs);
  book.countTokens(counts.tokens());
  const parts = setMicroBatches(engine, group.length);
  const { counted, further } = counts.divisors(group, { ranks: engine.dpWorldSize, parts });
  const reported: TrainerEvent[] = [];
  objective.beginUpdate?.(forward, group);
  for (const micro of group) {
    const here = mover.move(micro);
    const { metrics } = book;
    scope(() =>
      engine.backward(objective.computeSharedLoss(forward, here, counted, metrics, further)),
    );
    disposeMicroBatch(here);
    // By now the device has computed the numbers of the last update, so this does not wait.
    reported.push(...book.readPending());
    await source?.yieldToSampling();
  }
  for (const divisor of [counted, further]) if (divisor instanceof Tensor) divisor.dispose();
  const [lr = 0] = engine.getLr();
  engine.step();
  state.step++;
  objective.endUpdate?.(state.step);
  state.epoch = advanceEpoch(state.epoch, length.updatesPerEpoch);
  const isDue = decisions.isLogDue({ ...getProgress(state), isEpochEnd: false });
  book.noteUpdate({ ...getProgress(state), lr, isDue }, countRowTokens(group));
  yield* reported; // Yielded last: if the caller leaves here, the update is complete.
}

/** Evaluates, saves and reports if due. Returns the reason if the run ends now, else null. */
async function* finishUpdate<Batch>(
  session: Session<Batch>,
  moment: Moment,
): Events<EndReason | null> {
  const { engine, settings, state, decisions } = session;
  const stops = engine.stopRequested;
  const evaluation =
    !stops && decisions.isEvaluationDue(moment) ? yield* runEvaluation(session) : null;
  const isOver = evaluation !== null && shouldStopEarly(settings, state);
  const end = stops ? 'stopped' : isOver ? 'early' : decisions.isLast(moment) ? 'done' : null;
  if (end || (moment.isEpochEnd && decisions.isLogDue(moment))) yield* flushLogs(session);
  const { save } = settings;
  const isBest = evaluation?.isBest ?? false;
  if (save && decisions.isSaveDue(moment, { isBest, end }))
    yield* saveCheckpoint(session, save, isBest);
  return end;
}

async function* runEvaluation<Batch>(session: Session<Batch>): Events<EvaluateEvent | null> {
  const { settings, state, book } = session;
  if (!settings.eval) return null;
  yield* reportPending(session);
  const resume = book.suspend();
  const metrics = await evaluateSession(session, settings.eval.data, settings.eval);
  const isBest = compareWithBest(settings, state, metrics);
  const event: EvaluateEvent = { type: 'evaluate', ...getProgress(state), metrics, isBest };
  state.addEvaluation(event);
  yield event;
  resume();
  return event;
}

async function* saveCheckpoint<Batch>(
  session: Session<Batch>,
  save: SaveSettings,
  isBest: boolean,
): Events {
  const { engine, world, settings, state, book } = session;
  yield* reportPending(session);
  const resume = book.suspend();
  if (isBest && state.best) state.best.checkpoint = checkpointPath(save, state.step);
  const source = { engine, world, save, tokenizer: settings.tokenizer };
  const path = await writeCheckpoint(source, state.step, createStateJson(session));
  state.checkpoint = path;
  await retainCheckpoints(source, state.step, state.best?.checkpoint ?? null);
  yield { type: 'save', ...getProgress(state), path };
  resume();
}

/** Returns the content of trainer_state.json. */
export function createStateJson<Batch>({
  engine,
  settings,
  state,
  length,
}: Session<Batch>): JsonObject {
  const batchSize = engine.trainMicroBatchSizePerGpu();
  return state.toJson(settings, { maxSteps: length.maxSteps, batchSize });
}

/** Yields the events of the last update if they are pending. No later update may have begun. */
async function* reportPending<Batch>({ book, counts }: Session<Batch>): Events {
  book.countTokens(counts.tokens());
  yield* book.readPending();
}

/** Yields a log event for the updates that no log event contains yet. */
async function* flushLogs<Batch>(session: Session<Batch>): Events {
  yield* reportPending(session);
  const rest = session.book.flushLog();
  if (rest) yield rest;
}

/** Sets the number of micro-batches of this update. Returns the divisor for each loss. */
function setMicroBatches(engine: Engine, micros: number): number {
  if (!engine.config.managed_gradient_accumulation) return 1;
  if (engine.gradientAccumulationSteps() !== micros) {
    engine.setTrainBatchSize(micros * engine.trainMicroBatchSizePerGpu() * engine.dpWorldSize);
  }
  return micros;
}

/** Returns the number of tokens of a row; 1 for data without tokens. */
function countRowTokens<Batch>([micro]: readonly MicroBatch<Batch>[]): number {
  return micro?.targets?.shape.at(-1) ?? 1;
}

const getProgress = ({ step, epoch }: TrainerState): TrainerPlace => ({ step, epoch });

/**
 * Returns the epoch after one more update, without accumulating rounding errors. If the batch size
 * has changed, rounds down to a whole update.
 */
const advanceEpoch = (epoch: number, updates: number | null): number =>
  updates === null ? epoch : Math.floor(epoch * updates + 1 + 1e-6) / updates;

const isWholeEpoch = (epoch: number): boolean => Math.abs(epoch - Math.round(epoch)) < 1e-6;

function noBatchesError(): DsError {
  return new DsError({
    code: 'DS_DATA',
    op: 'Trainer train',
    expected: 'data with a batch for every epoch',
    got: 'none',
    hint: 'A source of batches must serve them again in each iteration.',
  });
}
