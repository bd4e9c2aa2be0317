// Trains DPO, KTO and a reward model on the CPU with several seeds. The results are metrics of
// held-out answers.
import { dpo, kto, nn, reward, seed, Trainer, type TrainerOptions } from '../lib/index.js';
import type { PairSample, UnpairedSample } from '../lib/text/index.js';
import type { Options } from './main.js';

const VOCABULARY = 32;
const FIRST = 4; // Tokens below are the two kinds of prompts, padding and the end.
const [END, PAD] = [2, 3];
const LENGTHS = { prompt: 6, answer: 4 };

const CONFIG = {
  model_type: 'llama',
  vocab_size: VOCABULARY,
  max_position_embeddings: 32,
  num_hidden_layers: 2,
  num_attention_heads: 4,
  hidden_size: 64,
  intermediate_size: 128,
  pad_token_id: PAD,
};

/** Numbers of [0, most) that follow from `start`. */
function randomOf(start: number): (most: number) => number {
  let state = start * 2_654_435_761 + 1;
  return (most) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * most);
  };
}

/** The first token of a prompt selects the chosen answer: even tokens after 0, odd ones after 1. */
function pairsOf(count: number, start: number): PairSample[] {
  const random = randomOf(start);
  const token = (): number => FIRST + random(VOCABULARY - FIRST);
  return Array.from({ length: count }, () => {
    const kind = random(2);
    const prompt = [kind, ...Array.from({ length: LENGTHS.prompt - 1 }, token)];
    const answer = (parity: number): number[] => {
      const half = (VOCABULARY - FIRST) / 2;
      return Array.from({ length: LENGTHS.answer }, () => FIRST + 2 * random(half) + parity);
    };
    const [chosen, rejected] = [kind, 1 - kind].map((parity) =>
      Int32Array.from([...prompt, ...answer(parity), END]),
    ) as [Int32Array, Int32Array];
    return { chosen, rejected, prompt: prompt.length, reference: null, margin: null };
  });
}

/** Both answers of each pair, one after the other. */
const answersOf = (pairs: readonly PairSample[]): UnpairedSample[] =>
  pairs.flatMap(({ chosen, rejected, prompt }) =>
    [chosen, rejected].map((ids, side) => ({ ids, prompt, desirable: side === 0, limit: 32 })),
  );

const datasetOf = <Sample>(samples: readonly Sample[]) => ({
  length: samples.length,
  get: (i: number) => samples[i] as Sample,
});

function modelOf(start: number): nn.models.CausalLM {
  seed(start);
  return nn.models.fromConfig(CONFIG);
}

function scorerOf(start: number): nn.models.TaskModel {
  seed(start);
  return nn.models.fromConfig(CONFIG, { task: 'sequence-classification', labels: ['reward'] });
}

type Numbers = Record<string, number>;

/** Trains by one method; returns logs and evaluations by step. */
async function learn(
  options: Partial<TrainerOptions>,
): Promise<{ logs: Numbers[]; held: Numbers[] }> {
  const trainer = new Trainer({
    batchSize: 16,
    device: 'cpu',
    progress: false,
    stopSignals: [],
    ...options,
  } as TrainerOptions);
  const [logs, held]: [Numbers[], Numbers[]] = [[], []];
  for await (const event of trainer.train()) {
    if (event.type === 'log')
      logs.push(roundAll({ step: event.step, loss: event.loss, ...event.metrics }));
    if (event.type === 'evaluate') held.push(roundAll({ step: event.step, ...event.metrics }));
  }
  await trainer.destroy();
  return { logs, held };
}

const roundAll = (numbers: Numbers): Numbers =>
  Object.fromEntries(
    Object.entries(numbers).map(([name, value]) => [name, Number(value.toPrecision(5))]),
  );

/** The share of held-out pairs with a higher reward of the chosen answer, by predict(). */
async function ktoRun(start: number, steps: number, pairs: PairSample[], held: PairSample[]) {
  const trainer = new Trainer({
    model: modelOf(start),
    method: kto({ reference: modelOf(start), beta: 0.1 }),
    train: datasetOf(answersOf(pairs)) as never,
    eval: { data: datasetOf(answersOf(held)) as never, every: steps / 6 },
    batchSize: 32,
    maxSteps: steps,
    lr: 2e-3,
    seed: start,
    log: { every: steps / 6 },
    device: 'cpu',
    progress: false,
    stopSignals: [],
  });
  const [logs, judged]: [Numbers[], Numbers[]] = [[], []];
  for await (const event of trainer.train()) {
    if (event.type === 'log')
      logs.push(roundAll({ step: event.step, loss: event.loss, ...event.metrics }));
    if (event.type === 'evaluate') judged.push(roundAll({ step: event.step, ...event.metrics }));
  }
  const rewards = (await trainer.predict(datasetOf(answersOf(held)) as never)).map((item) =>
    Number(item[0]),
  );
  await trainer.destroy();
  const right = held.filter((_, i) => (rewards[2 * i] as number) > (rewards[2 * i + 1] as number));
  return { logs, held: judged, accuracy: right.length / held.length };
}

/** Runs `--seeds` (3) seeds of `--steps` (60) updates each. */
export async function preferencesBench(options: Options): Promise<object> {
  const seeds = Array.from({ length: Number(options.seeds ?? 3) }, (_, i) => i + 1);
  const steps = Number(options.steps ?? 60);
  const every = steps / 6;
  const runs = [];
  for (const start of seeds) {
    const [pairs, held] = [pairsOf(1024, start), pairsOf(128, 1000 + start)];
    const common = {
      train: datasetOf(pairs) as never,
      eval: { data: datasetOf(held) as never, every },
      maxSteps: steps,
      lr: 2e-3,
      seed: start,
      log: { every },
    };
    runs.push({
      seed: start,
      dpo: await learn({
        ...common,
        model: modelOf(start),
        method: dpo({ reference: modelOf(start) }),
      }),
      kto: await ktoRun(start, steps, pairs, held),
      reward: await learn({ ...common, model: scorerOf(start), method: reward() }),
    });
  }
  return {
    task: 'the first token of a prompt selects answers of even or of odd tokens',
    pairs: 1024,
    held: 128,
    steps,
    batch: { pairs: 16, answers: 32 },
    lr: 2e-3,
    model: CONFIG,
    runs,
  };
}
