// Ranks in one process that exchange values in memory.
import type { CheckpointWorld } from '../../lib/checkpoint/index.js';
import type { JsonValue } from '../../types/json.js';

interface Round {
  said: JsonValue[];
  missing: number;
  done: (all: JsonValue[]) => void;
  all: Promise<JsonValue[]>;
}

/** Worlds of ranks 0 to `size` - 1 that make the same exchanges in the same order. */
export function joinedWorlds(size: number): CheckpointWorld[] {
  const rounds: Round[] = [];
  const roundOf = (number: number): Round => {
    const known = rounds[number];
    if (known) return known;
    let done!: Round['done'];
    const all = new Promise<JsonValue[]>((resolve) => {
      done = resolve;
    });
    const result = { said: new Array<JsonValue>(size), missing: size, done, all };
    rounds[number] = result;
    return result;
  };
  return Array.from({ length: size }, (_, rank) => {
    let number = 0;
    return {
      rank,
      size,
      exchange: (label, value) => {
        const round = roundOf(number++);
        round.said[rank] = JSON.parse(JSON.stringify([label, value]));
        if (--round.missing === 0) round.done(round.said);
        return round.all.then((all) =>
          all.map((item) => {
            const [other, message] = item as [string, JsonValue];
            if (other !== label) throw new Error(`${label} meets ${other}`);
            return message;
          }),
        );
      },
    };
  });
}

/** Resolves with the result of each rank. */
export function onRanks<T>(
  size: number,
  body: (world: CheckpointWorld) => Promise<T>,
): Promise<PromiseSettledResult<T>[]> {
  return Promise.allSettled(joinedWorlds(size).map(body));
}
