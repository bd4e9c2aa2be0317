// SharedPrompts: ranks claim prompts, and samples come back to the rank of their prompt.
import { setTimeout as pause } from 'node:timers/promises';
import type { CheckpointWorld } from '../../lib/checkpoint/index.js';
import type { Distributed } from '../../lib/comm/index.js';
import type { GenerateRequest } from '../../lib/inference/index.js';
import type { Sampled } from '../../lib/trainer/rollouts/generation.js';
import { type Phase, SharedPrompts } from '../../lib/trainer/rollouts/shared-prompts.js';

/** Ranks of one process, and the counters of their store. */
function ranksOf(size: number) {
  const counters = new Map<string, number>();
  const store = {
    add: async (key: string, step: number): Promise<number> => {
      counters.set(key, (counters.get(key) ?? 0) + step);
      return counters.get(key) as number;
    },
    delete: async (key: string): Promise<boolean> => counters.delete(key),
  };
  const rounds: { values: unknown[]; done: Promise<void>; end: () => void }[] = [];
  const ranks = Array.from({ length: size }, (_, rank) => {
    let round = 0;
    const world = {
      rank,
      size,
      exchange: async (_label: string, value: unknown) => {
        const at = round++;
        let end = (): void => {};
        const done = new Promise<void>((resolve) => {
          end = resolve;
        });
        rounds[at] ??= { values: [], done, end };
        const one = rounds[at] as (typeof rounds)[number];
        one.values[rank] = JSON.parse(JSON.stringify(value));
        if (Object.keys(one.values).length === size) one.end();
        await one.done;
        return one.values;
      },
    } as unknown as CheckpointWorld;
    const job = { store, nextName: () => 'prompts' } as unknown as Distributed;
    return new SharedPrompts(job, world);
  });
  return { ranks, counters };
}

const requestOf = (token: number): GenerateRequest => ({
  prompt: [token],
  n: 2,
  seed: token,
  beginsText: true,
  maxNewTokens: 3,
  logprobs: 0,
});

test('an idle rank samples prompts of a slow one, with all options', async () => {
  const { ranks, counters } = ranksOf(2);
  const seen: GenerateRequest[][] = [[], []];
  let phases = 0;
  const phaseOf =
    (rank: number): Phase =>
    (body) =>
      body(async (request) => {
        seen[rank]?.push(request);
        // Rank 0 waits until the other one has sampled the rest of its prompts.
        while (rank === 0 && (seen[1]?.length ?? 0) < 3 * (phases + 1)) await pause(1);
        const content = `${(request.prompt as number[])[0]}`;
        const one = { tokens: [1], logprobs: [0], mask: null, calls: 0, isTruncated: false };
        return Array.from({ length: 2 }, (): Sampled => ({ ...one, content }));
      });
  const localRows = [[1, 2, 3, 4].map(requestOf), []];
  for (const phase of [0, 1]) {
    const found = await Promise.all(
      ranks.map((rank, i) =>
        rank.sample(localRows[i] as GenerateRequest[], {
          phase: phaseOf(i),
          lanes: 1,
          sampling: { maxNewTokens: 3, logprobs: 0 },
        }),
      ),
    );
    const contents = found[0]?.completions.map(({ content }) => content);
    expect(contents).toEqual(['1', '1', '2', '2', '3', '3', '4', '4']);
    expect(found.map(({ stolen }) => stolen)).toEqual([6, 0]);
    expect(found[1]?.completions).toEqual([]);
    expect(seen.map(({ length }) => length)).toEqual([1 + phase, 3 + 3 * phase]);
    phases += 1;
  }
  for (const request of seen.flat()) {
    expect(request).toEqual(requestOf((request.prompt as number[])[0] as number));
  }
  expect(counters.size).toBe(0);
});
