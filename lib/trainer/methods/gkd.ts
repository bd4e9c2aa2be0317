// gkd(): generalized knowledge distillation. A student model learns the distributions of a teacher.
// Sources: Agarwal et al. 2024, TRL's GKDTrainer.
import { CausalLM } from '../../models/causal-lm.js';
import type { Module } from '../../nn/index.js';
import { argumentError, valueError } from '../../runtime/input-errors.js';
import {
  boolean,
  declareOption,
  integer,
  number,
  type Options,
  readDeclared,
  type Settings,
} from '../../runtime/option.js';
import { exp, noGrad, softplus, Tensor } from '../../tensor/index.js';
import { targetsOf } from '../../text/index.js';
import type { Forward, Objective, SessionParts } from '../micro-batch.js';
import { openDistilled } from '../rollouts/distilled-source.js';
import type { DeviceSums } from '../step-metrics.js';
import { type AnswerCounts, AnswerObjective } from './answer-objective.js';
import { type MethodSource, requireCausal, type SourceRequest, TrainingMethod } from './method.js';
import { DROPOUT } from './no-dropout.js';
import { Reference } from './reference.js';

/** The declared options of gkd(). */
export const GKD = {
  /** The teacher: a language model with the same vocabulary. */
  teacher: declareOption(readTeacher, 'model to learn from', {
    required: true,
    elsewhere: '`teacher_model_name_or_path`',
  }),
  /**
   * The divergence. 0: KL(teacher || student); 1: KL(student || teacher); between: Jensen-Shannon.
   * Default: 0.5.
   */
  beta: number(
    'divergence from the teacher. 0: forward KL, 1: reverse KL, between: Jensen-Shannon',
    {
      min: 0,
      max: 1,
      default: 0.5,
      flag: 'beta',
    },
  ),
  /** Divisor of the logits of both models. Default: 1. */
  lossTemperature: number('divisor of the logits of both models; above 1: softer targets', {
    above: 0,
    default: 1,
  }),
  /**
   * Probability that an update learns from completions that the student samples (on-policy).
   * Default: 0.5.
   */
  lmbda: number('share of the updates with completions that the student samples', {
    min: 0,
    max: 1,
    default: 0.5,
    flag: 'lmbda',
  }),
  /** Whether the teacher samples the completions of the other updates. Default: false. */
  seqKd: boolean('the teacher samples the completions of the other updates; false: from the data', {
    default: false,
    flag: 'seq_kd',
  }),
  /** Maximum number of tokens of a sampled completion. Default: 128. */
  maxNewTokens: integer('maximum number of tokens of a sampled completion', {
    min: 1,
    default: 128,
    flag: 'max_new_tokens',
  }),
  /** Temperature of the sampling. Default: 0.9. */
  temperature: number('temperature of sampling', {
    above: 0,
    default: 0.9,
    elsewhere: '`temperature`',
  }),
  /** Whether training runs without dropout. Default: true. */
  disableDropout: DROPOUT,
};

/** Options of gkd(). */
export interface GkdOptions extends Options<typeof GKD> {}

/**
 * Returns the `method` of a Trainer that learns the distributions of a teacher. It learns on the
 * labels of text rows, or on completions that the student or the teacher samples. Throws
 * DS_ARGUMENT for invalid options.
 */
export function gkd(given: GkdOptions): TrainingMethod {
  return new Gkd(readDeclared('gkd', given, GKD));
}

function readTeacher(op: string, given: CausalLM): CausalLM {
  if (given instanceof CausalLM) return given;
  throw valueError(op, 'a language model of nn.models', given);
}

class Gkd extends TrainingMethod {
  readonly name = 'gkd';
  readonly metrics = [];

  constructor(private readonly settings: Settings<typeof GKD>) {
    super();
  }

  override objectiveOf<Batch>(model: Module): Objective<Batch> {
    const student = requireCausal(this.name, model);
    const { teacher } = this.settings;
    if (teacher.vocabSize === student.vocabSize) return new GkdObjective(student, this.settings);
    const expected = `a vocabulary of ${student.vocabSize} tokens, as the student has`;
    throw argumentError('gkd teacher', expected, String(teacher.vocabSize));
  }

  override openSource(request: SourceRequest): Promise<MethodSource | null> {
    return openDistilled(this.settings, request);
  }
}

/** Returns log(exp(a) + exp(b)). */
const logAddExp = (a: Tensor, b: Tensor): Tensor => a.add(softplus(b.sub(a)));

/** Returns KL(p || q), [..], for log-probabilities p and q [.., V]. */
const klDivergence = (p: Tensor, q: Tensor): Tensor => exp(p).mul(p.sub(q)).sum(-1);

/** Returns the divergence of each token, [..] f32, for logits [.., V]. */
export function gkdLoss(
  student: Tensor,
  teacher: Tensor,
  { beta, lossTemperature }: Pick<Settings<typeof GKD>, 'beta' | 'lossTemperature'>,
): Tensor {
  const [s, t] = [student, teacher].map((logits) => {
    const wide = logits.dtype === 'f64' ? logits : logits.to('f32');
    return wide.div(lossTemperature).logSoftmax(-1);
  }) as [Tensor, Tensor];
  if (beta === 0) return klDivergence(t, s);
  if (beta === 1) return klDivergence(s, t);
  const m = logAddExp(s.add(Math.log(1 - beta)), t.add(Math.log(beta)));
  return klDivergence(t, m)
    .mul(beta)
    .add(klDivergence(s, m).mul(1 - beta));
}

/** A batch of text rows, with the target of each position. */
interface DistilledBatch {
  readonly ids: Tensor;
  readonly targets: Tensor;
  readonly documents?: Tensor;
  readonly positions?: Tensor;
}

const IGNORED = -100;

class GkdObjective<Batch> extends AnswerObjective<Batch, DistilledBatch, Tensor> {
  private readonly teacher: Reference;

  constructor(
    student: CausalLM,
    private readonly settings: Settings<typeof GKD>,
  ) {
    super('gkd', settings.disableDropout);
    this.teacher = new Reference('gkd', student, settings.teacher, 'teacher');
  }

  override async open(parts: SessionParts): Promise<void> {
    await super.open(parts);
    await this.teacher.open(parts.engine, parts.job);
  }

  override async close(): Promise<void> {
    await super.close();
    await this.teacher.close();
  }

  protected requireBatch(batch: unknown): DistilledBatch {
    const { ids, labels, targets = labels } = (batch ?? {}) as Record<string, unknown>;
    if (ids instanceof Tensor && targets instanceof Tensor) return batch as DistilledBatch;
    throw argumentError('Trainer train', 'a text.TextDataset for gkd()', 'other data');
  }

  protected override prepare(batch: DistilledBatch): DistilledBatch {
    const { labels, ...rest } = batch as DistilledBatch & { labels?: Tensor };
    if (rest.targets || !labels) return batch;
    const targets = targetsOf(labels);
    labels.dispose();
    return { ...rest, targets };
  }

  protected count({ targets }: DistilledBatch): AnswerCounts {
    const counted = targets.toArray().filter((target) => Number(target) !== IGNORED).length;
    return { counted, tokens: counted };
  }

  /** Returns the divergence of each counted token, [B, T]; 0 for other tokens. */
  protected computeSums(forward: Forward, batch: DistilledBatch): Tensor {
    const { ids, targets, documents = null, positions = null } = batch;
    const places = { documents, positions };
    const teacher = this.teacher.computeLogits(ids, places);
    const student = forward(ids, null, places);
    const counts = noGrad(() => targets.ne(IGNORED).to('f32'));
    return gkdLoss(student, teacher, this.settings).mul(counts);
  }

  protected computeLoss(losses: Tensor): Tensor {
    return losses;
  }

  protected computeDeviceSums(): DeviceSums {
    return {};
  }

  /** Returns the sum of the divergences of each row, [B]. */
  protected computeOutputRows(losses: Tensor): Tensor {
    return losses.sum(1);
  }
}
